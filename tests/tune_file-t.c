/*
 * Tune files: what is written is read; sections of other cards and versions stay; a file that is
 * cut short or changed anywhere is refused and harms nothing; many processes may write one at once.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "numbers.h"
#include "status.h"
#include "tap.h"
#include "tune_file.h"

/* In memory where that can be: every write waits for the disk. */
static char folder[64];
static char path[80];

static struct tune_card card_make(const char *name, uint64_t library)
{
    struct tune_card card = {.library = library, .capability = 90, .multiprocessors = 132};

    tune_card_name(&card, name);
    return card;
}

static struct tune_entry entry_make(uint64_t name, uint64_t algo)
{
    struct test_rng rng = {name};
    struct tune_entry entry;

    for (int i = 0; i < TUNE_KEY_WORDS; i++)
        entry.key[i] = test_random(&rng);
    for (int i = 0; i < TUNE_ALGO_WORDS; i++)
        entry.algo[i] = algo * 1000 + (uint64_t)i;
    return entry;
}

static void put(struct tune_table *table, uint64_t name, uint64_t algo)
{
    struct tune_entry entry = entry_make(name, algo);

    if (tune_table_put(table, &entry) != FP8PIPE_OK)
        bail("tune_table_put: %s", status_sentence());
}

/* Names first .. first + count - 1, with the algorithm given. */
static struct tune_table table_make(uint64_t first, uint64_t count, uint64_t algo)
{
    struct tune_table table = {NULL, 0, 0};

    for (uint64_t i = 0; i < count; i++)
        put(&table, first + i, algo);
    return table;
}

static bool has(const struct tune_table *table, uint64_t name, uint64_t algo)
{
    struct tune_entry want = entry_make(name, algo);
    const struct tune_entry *found = tune_table_find(table, want.key);

    return found != NULL && memcmp(found, &want, sizeof(want)) == 0;
}

static bool has_all(const struct tune_table *table, uint64_t first, uint64_t count, uint64_t algo)
{
    bool all = true;

    for (uint64_t i = 0; i < count; i++)
        all &= has(table, first + i, algo);
    return all;
}

static void write_must(const struct tune_card *card, uint64_t first, uint64_t count, uint64_t algo)
{
    struct tune_table table = table_make(first, count, algo);
    bool damaged;

    if (tune_file_write(path, card, &table, &damaged) != FP8PIPE_OK)
        bail("tune_file_write: %s", status_sentence());
    if (damaged)
        fail("a file of ours is taken for damaged");
    tune_table_free(&table);
}

static struct tune_table read_must(const struct tune_card *card)
{
    struct tune_table table = {NULL, 0, 0};

    if (tune_file_read(path, card, &table) != FP8PIPE_OK)
        bail("tune_file_read: %s", status_sentence());
    return table;
}

/* The status of a read, and whether it kept its hands off the table. */
static enum fp8pipe_status read_status(const struct tune_card *card, bool *untouched)
{
    struct tune_table table = {NULL, 0, 0};
    enum fp8pipe_status status = tune_file_read(path, card, &table);

    *untouched = table.count == 0;
    tune_table_free(&table);
    return status;
}

static char *text_get(size_t *bytes)
{
    FILE *file = fopen(path, "r");
    char *text = test_calloc(1 << 20, 1);

    if (file == NULL)
        bail("%s: %s", path, strerror(errno));
    *bytes = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    return text;
}

static void text_set(const char *text, size_t bytes)
{
    FILE *file = fopen(path, "w");

    if (file == NULL || fwrite(text, 1, bytes, file) != bytes || fclose(file) != 0)
        bail("%s: %s", path, strerror(errno));
}

/* ---- Tables and files --------------------------------------------------------------------- */

static void test_table(void)
{
    struct tune_table table = {NULL, 0, 0}, copy = {NULL, 0, 0};
    struct tune_entry entry = entry_make(5, 1);
    bool ordered = true;

    ok(tune_table_find(&table, entry.key) == NULL, "an empty table has nothing");
    ok(tune_table_copy(&copy, &table) == FP8PIPE_OK && copy.count == 0, "nor has its copy");
    for (uint64_t i = 0; i < 500; i++)
        put(&table, i * 7 % 500, 1);
    is_int(table.count, 500, "what is put is kept");
    ok(has_all(&table, 0, 500, 1), "and found");
    for (size_t i = 1; i < table.count; i++)
        ordered &= memcmp(table.entries[i - 1].key, table.entries[i].key, sizeof(entry.key)) < 0;
    ok(ordered, "in order");
    put(&table, 5, 2);
    is_int(table.count, 500, "a key has one algorithm");
    ok(has(&table, 5, 2), "the last one");
    ok(!has(&table, 500, 1), "a key that was not put is not found");
    ok(tune_table_copy(&copy, &table) == FP8PIPE_OK && copy.count == 500 && has(&copy, 499, 1),
       "a copy has it all");
    tune_table_free(&copy);
    while (table.count < TUNE_ENTRIES_MAX)
        put(&table, 1000 + table.count, 1);
    entry = entry_make(7, 3);
    is_int(tune_table_put(&table, &entry), FP8PIPE_OK, "a full table takes other algorithms");
    entry = entry_make(1000000, 3);
    is_int(tune_table_put(&table, &entry), FP8PIPE_EAGAIN, "but no more keys");
    tune_table_free(&table);
}

static void test_round_trip(void)
{
    struct tune_card card = card_make("NVIDIA H200", 130100), other = card_make("NVIDIA H200", 1);
    struct tune_table table = {NULL, 0, 0};
    bool untouched;

    is_int(tune_file_read(path, &card, &table), FP8PIPE_EINVAL, "a file that is not there");
    ok(strstr(status_sentence(), path) != NULL, "is named: %s", status_sentence());
    write_must(&card, 0, 100, 1);
    table = read_must(&card);
    ok(table.count == 100 && has_all(&table, 0, 100, 1), "what is written is read");
    tune_table_free(&table);
    table = table_make(99, 2, 9);
    if (tune_file_read(path, &card, &table) != FP8PIPE_OK)
        bail("%s", status_sentence());
    ok(table.count == 101 && has(&table, 99, 1) && has(&table, 100, 9),
       "into a table that has some");
    tune_table_free(&table);
    is_int(read_status(&other, &untouched), FP8PIPE_ENOTSUP, "another version of the library");
    ok(untouched && strstr(status_sentence(), "NVIDIA H200") != NULL, "has nothing there: %s",
       status_sentence());
    other = card_make("NVIDIA H100 80GB HBM3", 130100);
    is_int(read_status(&other, &untouched), FP8PIPE_ENOTSUP, "nor has another card");
    other = card;
    other.multiprocessors = 114;
    is_int(read_status(&other, &untouched), FP8PIPE_ENOTSUP, "or one with fewer multiprocessors");
    write_must(&card, 200, 0, 1);
    table = read_must(&card);
    is_int(table.count, 100, "a write of nothing changes nothing");
    tune_table_free(&table);
    other = card_make("odd \n name \x80", 7);
    write_must(&other, 0, 3, 1);
    table = read_must(&other);
    is_int(table.count, 3, "a card's name may have any bytes");
    tune_table_free(&table);
    memset(&other, 0, sizeof(other));
    write_must(&other, 0, 1, 1);
    table = read_must(&other);
    is_int(table.count, 1, "or none");
    tune_table_free(&table);
    unlink(path);
}

static void test_merge(void)
{
    struct tune_card one = card_make("one", 1), two = card_make("two", 1),
                     new = card_make("one", 2);
    struct tune_table table;

    write_must(&one, 0, 10, 1);
    write_must(&two, 0, 5, 2);
    write_must(&new, 0, 3, 3);
    write_must(&one, 8, 4, 4);
    table = read_must(&one);
    ok(table.count == 12 && has_all(&table, 0, 8, 1) && has_all(&table, 8, 4, 4),
       "a section keeps other keys, and takes newer algorithms");
    tune_table_free(&table);
    table = read_must(&two);
    ok(table.count == 5 && has_all(&table, 0, 5, 2), "another card's section stays");
    tune_table_free(&table);
    table = read_must(&new);
    ok(table.count == 3 && has_all(&table, 0, 3, 3), "so does another version's");
    tune_table_free(&table);
    unlink(path);
}

/* ---- Damage ------------------------------------------------------------------------------- */

static void test_truncation(void)
{
    struct tune_card card = card_make("card", 1), other = card_make("other", 1);
    size_t bytes, quiet = 0, touched = 0;
    char *text;

    write_must(&card, 0, 3, 1);
    write_must(&other, 0, 2, 1);
    text = text_get(&bytes);
    for (size_t length = 0; length < bytes; length++) {
        enum fp8pipe_status status;
        bool untouched;

        text_set(text, length);
        status = read_status(&card, &untouched);
        quiet += status != FP8PIPE_ESTATE;
        touched += !untouched;
    }
    is_int(quiet, 0, "cut short at any byte, a file is refused");
    is_int(touched, 0, "and nothing of it is taken");
    text[bytes] = '\n';
    text_set(text, bytes + 1);
    is_int(read_status(&card, &(bool){0}), FP8PIPE_ESTATE, "a byte too many is one too");
    free(text);
    unlink(path);
}

static void test_flips(void)
{
    struct tune_card card = card_make("card", 1);
    struct test_rng rng = {4};
    size_t bytes, quiet = 0, touched = 0, replaced = 0;
    char *text;

    write_must(&card, 0, 3, 1);
    text = text_get(&bytes);
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        bool untouched;

        text[bit / 8] ^= (char)(1 << bit % 8);
        text_set(text, bytes);
        quiet += read_status(&card, &untouched) != FP8PIPE_ESTATE;
        touched += !untouched;
        text[bit / 8] ^= (char)(1 << bit % 8);
    }
    is_int(quiet, 0, "with any bit flipped, a file is refused");
    is_int(touched, 0, "and nothing of it is taken");
    for (int i = 0; i < 3000; i++) {
        size_t from = (size_t)test_random_range(&rng, 0, (int64_t)bytes - 1);
        size_t count = (size_t)test_random_range(&rng, 1, 40);
        char *copy = test_calloc(bytes + 64, 1);
        bool untouched;

        memcpy(copy, text, bytes);
        for (size_t j = from; j < bytes && j < from + count; j++)
            copy[j] = (char)test_random(&rng);
        if (memcmp(copy, text, bytes) != 0) {
            text_set(copy, bytes);
            quiet += read_status(&card, &untouched) != FP8PIPE_ESTATE;
        }
        free(copy);
    }
    is_int(quiet, 0, "so it is with bytes of any kind in it");
    for (int i = 0; i < 200; i++) {
        struct tune_table table = table_make(50, 1, 1);
        size_t at = (size_t)test_random_range(&rng, 20, (int64_t)bytes - 1);
        bool damaged;

        text[at] ^= 1;
        text_set(text, bytes);
        text[at] ^= 1;
        if (tune_file_write(path, &card, &table, &damaged) != FP8PIPE_OK || !damaged)
            replaced++;
        tune_table_free(&table);
        table = read_must(&card);
        replaced += table.count != 1 || !has(&table, 50, 1);
        tune_table_free(&table);
    }
    is_int(replaced, 0, "a damaged file is replaced by one with what is written, and said to be");
    free(text);
    unlink(path);
}

/* With a right checksum: what only another program could have written. */
static void test_nonsense(void)
{
    static const char *const bodies[] = {
        "plan 00 00\n",
        "card\n",
        "card 1\n",
        "card 1 90 132\n",
        "card 1 90 99999999999 name\n",
        "card 99999999999999999999999 90 132 name\n",
        "card -1 90 132 name\n",
        "card 1 90 132 a name that is much longer than any name of a card that there has ever "
        "been so far, anywhere, by anybody at all\n",
        "\n",
        "end 0000000000000000\n",
        "card 1 90 132 name\nplan \n",
        "card 1 90 132 name\nplan zz\n",
    };
    struct tune_card card = card_make("name", 1);
    size_t quiet = 0;

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        uint64_t sum = UINT64_C(0xcbf29ce484222325);
        char text[512];
        size_t length = (size_t)snprintf(text, 400, "fp8pipe tune file 1\n%s", bodies[i]);

        for (size_t j = 0; j < length; j++)
            sum = (sum ^ (unsigned char)text[j]) * UINT64_C(0x100000001b3);
        length += (size_t)snprintf(text + length, 100, "end %016llx\n", (unsigned long long)sum);
        text_set(text, length);
        if (read_status(&card, &(bool){0}) != FP8PIPE_ESTATE) {
            quiet++;
            diag("taken: %s", bodies[i]);
        }
    }
    is_int(quiet, 0, "lines that make no sense are refused, whatever the checksum says");
    unlink(path);
}

static void test_foreign(void)
{
    static const char newer[] = "fp8pipe tune file 2\nsomething\n", notes[] = "my notes\n";
    struct tune_card card = card_make("card", 1);
    struct tune_table table = table_make(0, 1, 1);
    bool damaged, untouched;
    size_t bytes;
    char *text;

    text_set(newer, strlen(newer));
    is_int(read_status(&card, &untouched), FP8PIPE_ESTATE, "a file of another format");
    ok(strstr(status_sentence(), "format 2") != NULL, "is called that: %s", status_sentence());
    is_int(tune_file_write(path, &card, &table, &damaged), FP8PIPE_ESTATE, "and not replaced");
    text = text_get(&bytes);
    is_str(text, newer, "nor touched");
    free(text);
    text_set(notes, strlen(notes));
    is_int(read_status(&card, &untouched), FP8PIPE_ESTATE, "what is no tune file is refused");
    is_int(tune_file_write(path, &card, &table, &damaged), FP8PIPE_ESTATE, "and not replaced");
    text = text_get(&bytes);
    is_str(text, notes, "nor touched");
    free(text);
    text_set("", 0);
    is_int(read_status(&card, &untouched), FP8PIPE_ESTATE, "an empty file has no plans");
    is_int(tune_file_write(path, &card, &table, &damaged), FP8PIPE_OK, "and may be written");
    unlink(path);
    if (mkdir(path, 0777) != 0)
        bail("mkdir: %s", strerror(errno));
    is_int(read_status(&card, &untouched), FP8PIPE_EINVAL, "a folder is no file to read");
    is_int(tune_file_write(path, &card, &table, &damaged), FP8PIPE_EINVAL, "nor to write");
    rmdir(path);
    tune_table_free(&table);
}

static void test_unwritable(void)
{
    struct tune_card card = card_make("card", 1);
    struct tune_table table = table_make(0, 1, 1);
    char nowhere[128];
    bool damaged;

    snprintf(nowhere, sizeof(nowhere), "%s/no/such/folder", folder);
    is_int(tune_file_check(nowhere), FP8PIPE_EINVAL, "a folder that is not there is seen at once");
    ok(strstr(status_sentence(), nowhere) != NULL, "and named: %s", status_sentence());
    is_int(tune_file_write(nowhere, &card, &table, &damaged), FP8PIPE_EINVAL, "and by the write");
    is_int(tune_file_check(path), FP8PIPE_OK, "one that is there is fine");
    if (geteuid() == 0) {
        skip(1, "root may write everywhere");
    } else {
        chmod(folder, 0555);
        is_int(tune_file_write(path, &card, &table, &damaged), FP8PIPE_EINVAL,
               "a folder that may not be written in");
        chmod(folder, 0777);
    }
    tune_table_free(&table);
    unlink(path);
}

/* ---- Processes ---------------------------------------------------------------------------- */

#define PROCESSES 6
#define WRITES 20

/* Each process writes keys of its own, to its own card's section and to a common one. */
static int write_often(int process)
{
    char name[32];
    struct tune_card own, common = card_make("common", 1);
    bool damaged;

    snprintf(name, sizeof(name), "card %d", process);
    own = card_make(name, 1);
    for (int i = 0; i < WRITES; i++) {
        struct tune_table table = table_make((uint64_t)(process * WRITES + i), 1, 1);
        struct tune_table seen = {NULL, 0, 0};

        if (tune_file_write(path, &own, &table, &damaged) != FP8PIPE_OK || damaged ||
            tune_file_write(path, &common, &table, &damaged) != FP8PIPE_OK || damaged ||
            tune_file_read(path, &own, &seen) != FP8PIPE_OK || seen.count != (size_t)i + 1) {
            diag("process %d, write %d: %s", process, i, status_sentence());
            return 1;
        }
        tune_table_free(&seen);
        tune_table_free(&table);
    }
    return 0;
}

static void test_processes(void)
{
    struct tune_card common = card_make("common", 1);
    struct tune_table table;
    pid_t processes[PROCESSES];
    int failed = 0;

    for (int i = 0; i < PROCESSES; i++) {
        processes[i] = fork();
        if (processes[i] < 0)
            bail("fork: %s", strerror(errno));
        if (processes[i] == 0)
            _exit(write_often(i));
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status;

        if (waitpid(processes[i], &status, 0) != processes[i] || status != 0)
            failed++;
    }
    is_int(failed, 0, "processes that write one file at once all succeed, and read whole files");
    table = read_must(&common);
    ok(table.count == (size_t)PROCESSES * WRITES &&
           has_all(&table, 0, (uint64_t)PROCESSES * WRITES, 1),
       "and none loses what another wrote");
    tune_table_free(&table);
}

/* A process that is killed while it writes leaves the old file or the new one. */
static void test_killed(void)
{
    struct tune_card common = card_make("common", 1);
    int damaged = 0;

    for (int i = 0; i < 20; i++) {
        pid_t process = fork();
        struct timespec time = {0, 500000 * (i % 8 + 1)};
        struct tune_table table;

        if (process < 0)
            bail("fork: %s", strerror(errno));
        if (process == 0) {
            table = table_make(1000, 50, 1);
            for (bool damaged_now;;)
                (void)tune_file_write(path, &common, &table, &damaged_now);
        }
        nanosleep(&time, NULL);
        kill(process, SIGKILL);
        waitpid(process, NULL, 0);
        table = read_must(&common);
        damaged += !has_all(&table, 0, (uint64_t)PROCESSES * WRITES, 1);
        tune_table_free(&table);
    }
    is_int(damaged, 0, "a writer that is killed damages nothing");
    write_must(&common, 0, 1, 5);
    pass("nor does it leave its lock behind");
}

int main(void)
{
    char command[128];

    snprintf(folder, sizeof(folder), "%s/fp8pipe-tune-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (mkdtemp(folder) == NULL)
        bail("mkdtemp: %s", strerror(errno));
    snprintf(path, sizeof(path), "%s/plans", folder);
    test_table();
    test_round_trip();
    test_merge();
    test_truncation();
    test_flips();
    test_nonsense();
    test_foreign();
    test_unwritable();
    test_processes();
    test_killed();
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command) != 0)
        diag("%s: not removed", folder);
    return done_testing();
}
