/* Guards the statuses: each code has its name and sentence, and each thread its own last error. */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "status.h"
#include "tap.h"

struct row {
    const char *name;
    int code;
    const char *sentence;
};

static const struct row table[] = {
#define STATUS_ROW(name, code, sentence) {"FP8PIPE_" #name, code, sentence},
    FP8PIPE_STATUS_TABLE(STATUS_ROW)
#undef STATUS_ROW
};

#define ROWS ((int)(sizeof(table) / sizeof(table[0])))

static void known(void)
{
    int nameless = 0, alike = 0;

    is_int(FP8PIPE_OK, 0, "OK is 0");
    for (int i = 0; i < ROWS; i++) {
        enum fp8pipe_status status = (enum fp8pipe_status)table[i].code;

        nameless += strcmp(fp8pipe_status_name(status), table[i].name) != 0 ||
                    strcmp(fp8pipe_strerror(status), table[i].sentence) != 0 ||
                    table[i].sentence[0] == '\0';
        for (int j = 0; j < i; j++) {
            alike +=
                table[j].code == table[i].code || strcmp(table[j].sentence, table[i].sentence) == 0;
        }
    }
    is_int(nameless, 0, "each of the %d statuses has its name and its sentence", ROWS);
    is_int(alike, 0, "no two of them have a code or a sentence in common");
    for (int i = 0; i < ROWS; i++) {
        nameless += table[i].code != i;
    }
    is_int(nameless, 0, "their codes have no gap");
}

static void unknown(void)
{
    const int codes[] = {-1, ROWS, 1000, INT_MAX, INT_MIN};
    int wrong = 0;

    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        const char *sentence = fp8pipe_strerror((enum fp8pipe_status)codes[i]);
        const char *name = fp8pipe_status_name((enum fp8pipe_status)codes[i]);

        wrong += sentence == NULL || sentence[0] == '\0' || name == NULL || name[0] == '\0';
        for (int j = 0; j < ROWS && sentence != NULL && name != NULL; j++) {
            wrong += strcmp(sentence, table[j].sentence) == 0 || strcmp(name, table[j].name) == 0;
        }
    }
    is_int(wrong, 0, "an unknown code has words too, of its own");
}

static void *refuse(void *arg)
{
    bool *empty = arg;

    *empty = fp8pipe_last_error() != NULL && fp8pipe_last_error()[0] == '\0';
    status_fail(FP8PIPE_ENOMEM, "of the other thread");
    return NULL;
}

static void sentences(void)
{
    char longest[2 * STATUS_SENTENCE_BYTES];
    bool empty = false;
    pthread_t thread;

    is_str(fp8pipe_last_error(), "", "no call was refused yet");
    is_int(status_fail(FP8PIPE_EINVAL, "rows = %d: it is >= 0", -3), FP8PIPE_EINVAL,
           "a refusal returns its status");
    is_str(fp8pipe_last_error(), "rows = -3: it is >= 0", "and leaves its sentence");
    is_str(status_sentence(), fp8pipe_last_error(), "which the library reads too");
    if (pthread_create(&thread, NULL, refuse, &empty) != 0) {
        bail("pthread_create");
    }
    pthread_join(thread, NULL);
    ok(empty, "another thread begins without one");
    is_str(fp8pipe_last_error(), "rows = -3: it is >= 0", "and changes only its own");
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    status_fail(FP8PIPE_EINVAL, "%s", longest);
    is_int(strlen(fp8pipe_last_error()), STATUS_SENTENCE_BYTES - 1, "one that is too long is cut");
    status_fail(FP8PIPE_EINVAL, "to = %p, from = %p: both are needed", NULL, NULL);
    is_str(fp8pipe_last_error(), "to = NULL, from = NULL: both are needed", "NULL is called so");
    status_fail(FP8PIPE_EINVAL, "%s", "short");
    is_str(fp8pipe_last_error(), "short", "the last one counts");
}

static void version(void)
{
    char wanted[32];

    snprintf(wanted, sizeof(wanted), "%d.%d.%d", FP8PIPE_VERSION_MAJOR, FP8PIPE_VERSION_MINOR,
             FP8PIPE_VERSION_PATCH);
    is_str(fp8pipe_version(), wanted, "the library is of its header's version");
}

/* The reason of a failure is often part of the next sentence. */
static void nested(void)
{
    status_fail(FP8PIPE_EINVAL, "the first reason");
    status_fail(FP8PIPE_ENOMEM, "outside: %s: %d", status_sentence(), 7);
    is_str(status_sentence(), "outside: the first reason: 7", "a sentence may have the last in it");
}

int main(void)
{
    known();
    unknown();
    sentences();
    version();
    nested();
    return done_testing();
}
