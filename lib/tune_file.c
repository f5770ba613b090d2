#include "tune_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "status.h"

#define TUNE_MAGIC "fp8pipe tune file "
#define TUNE_FORMAT "1"
#define TUNE_FILE_BYTES_MAX ((size_t)256 << 20)
#define TUNE_LOCK_NS INT64_C(30000000000)
#define TUNE_LOCK_LOOK_NS 10000000

#define WORD_DIGITS 16

/* ---- Parsing ------------------------------------------------------------------------------ */

/* FNV-1a: each step is a bijection, so one changed byte always shows. */
static uint64_t checksum(const char *text, size_t bytes)
{
    uint64_t sum = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < bytes; i++) {
        sum = (sum ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

static bool parse_word(const char *digits, uint64_t *word)
{
    *word = 0;
    for (int i = 0; i < WORD_DIGITS; i++) {
        char digit = digits[i];

        if (digit >= '0' && digit <= '9') {
            *word = *word << 4 | (uint64_t)(digit - '0');
        } else if (digit >= 'a' && digit <= 'f') {
            *word = *word << 4 | (uint64_t)(digit - 'a' + 10);
        } else {
            return false;
        }
    }
    return true;
}

static bool parse_words(const char *digits, uint64_t *words, int count)
{
    for (int i = 0; i < count; i++) {
        if (!parse_word(digits + (size_t)i * WORD_DIGITS, &words[i])) {
            return false;
        }
    }
    return true;
}

/* A decimal number and the space behind it. */
static bool parse_number(const char **text, uint64_t most, uint64_t *number)
{
    const char *at = *text;

    *number = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (*number > (most - (uint64_t)(*at - '0')) / 10) {
            return false;
        }
        *number = *number * 10 + (uint64_t)(*at - '0');
    }
    if (at == *text || *at != ' ') {
        return false;
    }
    *text = at + 1;
    return true;
}

#define PLAN_PREFIX "plan "
#define CARD_PREFIX "card "
#define END_PREFIX "end "
#define PLAN_LINE                                                                                  \
    (sizeof(PLAN_PREFIX) - 1 + (size_t)WORD_DIGITS * (TUNE_KEY_WORDS + TUNE_ALGO_WORDS) + 1)

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool parse_plan(const char *line, size_t length, struct tune_entry *entry)
{
    const char *key = line + strlen(PLAN_PREFIX);
    const char *algo = key + (size_t)TUNE_KEY_WORDS * WORD_DIGITS + 1;

    return length == PLAN_LINE && algo[-1] == ' ' && parse_words(key, entry->key, TUNE_KEY_WORDS) &&
           parse_words(algo, entry->algo, TUNE_ALGO_WORDS);
}

static bool parse_card(const char *line, size_t length, struct tune_card *card)
{
    const char *at = line + strlen(CARD_PREFIX);
    uint64_t capability, multiprocessors;

    memset(card, 0, sizeof(*card));
    if (!parse_number(&at, UINT64_MAX, &card->library) ||
        !parse_number(&at, UINT32_MAX, &capability) ||
        !parse_number(&at, UINT32_MAX, &multiprocessors) ||
        (size_t)(line + length - at) >= TUNE_NAME_BYTES) {
        return false;
    }
    card->capability = (uint32_t)capability;
    card->multiprocessors = (uint32_t)multiprocessors;
    memcpy(card->name, at, (size_t)(line + length - at));
    return true;
}

static enum fp8pipe_status refuse(const char *path, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static enum fp8pipe_status refuse(const char *path, const char *format, ...)
{
    char what[STATUS_SENTENCE_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    return status_fail(FP8PIPE_ESTATE, "tune file %s: %s", path, what);
}

/* The lines between the first and the last. */
static enum fp8pipe_status parse_lines(const char *path, const char *text, const char *end,
                                       struct tune_sections *sections)
{
    enum fp8pipe_status status = FP8PIPE_OK;
    struct tune_section *section = NULL;

    for (int number = 2; text < end && status == FP8PIPE_OK; number++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t length = newline != NULL ? (size_t)(newline - text) : 0;
        struct tune_entry entry;
        struct tune_card card;

        if (starts_with(text, PLAN_PREFIX) && section != NULL && parse_plan(text, length, &entry)) {
            status = tune_table_put(&section->table, &entry);
        } else if (starts_with(text, CARD_PREFIX) && newline != NULL &&
                   parse_card(text, length, &card)) {
            section = tune_sections_find(sections, &card);
            if (section == NULL) {
                status = tune_sections_add(sections, &card, &section);
            }
        } else {
            return refuse(path, "it is damaged: line %d makes no sense", number);
        }
        text += length + 1;
    }
    return status;
}

/* text[bytes] is '\0'. *other: what it is, is not this format, damaged or not. */
static enum fp8pipe_status parse(const char *path, const char *text, size_t bytes,
                                 struct tune_sections *sections, bool *other)
{
    const size_t end_line = strlen(END_PREFIX) + WORD_DIGITS + 1;
    const char *format = text + strlen(TUNE_MAGIC), *end;
    uint64_t sum;

    *other = true;
    if (bytes == 0) {
        *other = false;
        return refuse(path, "it is empty");
    }
    if (!starts_with(text, TUNE_MAGIC)) {
        return refuse(path, "it is not a tune file");
    }
    if (!starts_with(format, TUNE_FORMAT "\n")) {
        return refuse(path, "it is of format %.*s, this library knows " TUNE_FORMAT,
                      (int)strcspn(format, "\n") > 16 ? 16 : (int)strcspn(format, "\n"), format);
    }
    *other = false;
    end = text + bytes - end_line;
    if (end <= format || memchr(text, '\0', bytes) != NULL || end[-1] != '\n' ||
        !starts_with(end, END_PREFIX) || text[bytes - 1] != '\n' ||
        !parse_word(end + strlen(END_PREFIX), &sum)) {
        return refuse(path, "it is damaged: its end is missing");
    }
    if (sum != checksum(text, (size_t)(end - text))) {
        return refuse(path, "it is damaged: its checksum is another");
    }
    return parse_lines(path, format + strlen(TUNE_FORMAT "\n"), end, sections);
}

/* ---- Reading ------------------------------------------------------------------------------ */

static enum fp8pipe_status refuse_io(const char *path, const char *what)
{
    return status_fail(FP8PIPE_EINVAL, "tune file %s: it cannot be %s: %s", path, what,
                       strerror(errno));
}

/* The file's bytes and a '\0'. *missing: it is not there. */
static enum fp8pipe_status text_read(const char *path, char **out, size_t *bytes, bool *missing)
{
    enum fp8pipe_status status = FP8PIPE_OK;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat stat;
    size_t got = 0;
    char *text;

    *missing = file < 0 && errno == ENOENT;
    if (file < 0) {
        return refuse_io(path, "read");
    }
    if (fstat(file, &stat) != 0) {
        status = refuse_io(path, "read");
        goto close_file;
    }
    if (!S_ISREG(stat.st_mode) || (uint64_t)stat.st_size > TUNE_FILE_BYTES_MAX) {
        status = status_fail(FP8PIPE_EINVAL, "tune file %s: it is not a file of up to %zu bytes",
                             path, TUNE_FILE_BYTES_MAX);
        goto close_file;
    }
    text = malloc((size_t)stat.st_size + 1);
    if (text == NULL) {
        status = status_fail(FP8PIPE_ENOMEM, "tune file %s: no host memory for it", path);
        goto close_file;
    }
    while (got < (size_t)stat.st_size) {
        ssize_t now = read(file, text + got, (size_t)stat.st_size - got);

        if (now < 0 && errno == EINTR) {
            continue;
        }
        if (now < 0) {
            status = refuse_io(path, "read");
            free(text);
            goto close_file;
        }
        if (now == 0) {
            break;
        }
        got += (size_t)now;
    }
    text[got] = '\0';
    *out = text;
    *bytes = got;
close_file:
    close(file);
    return status;
}

static enum fp8pipe_status sections_read(const char *path, struct tune_sections *sections,
                                         bool *missing, bool *other)
{
    enum fp8pipe_status status;
    size_t bytes = 0;
    char *text = NULL;

    *sections = (struct tune_sections){NULL, 0};
    *other = false;
    status = text_read(path, &text, &bytes, missing);
    if (status != FP8PIPE_OK) {
        return status;
    }
    status = parse(path, text, bytes, sections, other);
    free(text);
    if (status != FP8PIPE_OK) {
        tune_sections_free(sections);
    }
    return status;
}

enum fp8pipe_status tune_file_read(const char *path, const struct tune_card *card,
                                   struct tune_table *table)
{
    const struct tune_section *section;
    struct tune_sections sections;
    bool missing, other;
    enum fp8pipe_status status = sections_read(path, &sections, &missing, &other);

    if (status != FP8PIPE_OK) {
        return status;
    }
    section = tune_sections_find(&sections, card);
    if (section == NULL) {
        status = status_fail(FP8PIPE_ENOTSUP,
                             "tune file %s: it has no plans for %s (%" PRIu32 " multiprocessors) "
                             "with cuBLASLt %" PRIu64,
                             path, card->name, card->multiprocessors, card->library);
    }
    for (size_t i = 0; section != NULL && i < section->table.count && status == FP8PIPE_OK; i++) {
        status = tune_table_put(table, &section->table.entries[i]);
    }
    tune_sections_free(&sections);
    return status;
}

/* ---- Writing ------------------------------------------------------------------------------ */

/* `path` with something behind it; the caller's to free. */
static char *path_with(const char *path, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static char *path_with(const char *path, const char *format, ...)
{
    size_t length = strlen(path);
    char *made = malloc(length + 32);
    va_list args;

    if (made != NULL) {
        memcpy(made, path, length);
        va_start(args, format);
        vsnprintf(made + length, 32, format, args);
        va_end(args);
    }
    return made;
}

static enum fp8pipe_status lock_open(const char *path, int *lock)
{
    char *lock_path = path_with(path, ".lock");

    if (lock_path == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "tune file %s: no host memory for its name", path);
    }
    *lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    free(lock_path);
    return *lock >= 0 ? FP8PIPE_OK : refuse_io(path, "written (its lock)");
}

/* A lock of the open file, not of the process: two pipes of one process lock each other out too. */
static enum fp8pipe_status lock_take(const char *path, int *lock)
{
    enum fp8pipe_status status = lock_open(path, lock);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct timespec look = {.tv_nsec = TUNE_LOCK_LOOK_NS};

    if (status != FP8PIPE_OK) {
        return status;
    }
    for (int64_t waited = 0; fcntl(*lock, F_OFD_SETLK, &whole) != 0; waited += look.tv_nsec) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
            status = refuse_io(path, "written (its lock)");
        } else if (waited >= TUNE_LOCK_NS) {
            status = status_fail(FP8PIPE_ETIMEDOUT,
                                 "tune file %s: another process has held %s.lock for too long",
                                 path, path);
        }
        if (status != FP8PIPE_OK) {
            close(*lock);
            return status;
        }
        nanosleep(&look, NULL);
    }
    return FP8PIPE_OK;
}

enum fp8pipe_status tune_file_check(const char *path)
{
    int lock;
    enum fp8pipe_status status = lock_open(path, &lock);

    if (status == FP8PIPE_OK) {
        close(lock);
    }
    return status;
}

static void print_words(FILE *file, const uint64_t *words, int count)
{
    for (int i = 0; i < count; i++) {
        fprintf(file, "%016" PRIx64, words[i]);
    }
}

/* The whole text, in memory of the C library's; NULL when memory runs out. */
static char *sections_print(const struct tune_sections *sections, size_t *bytes)
{
    char *text = NULL;
    FILE *file;
    bool failed;

    *bytes = 0;
    file = open_memstream(&text, bytes);
    if (file == NULL) {
        return NULL;
    }
    fprintf(file, TUNE_MAGIC TUNE_FORMAT "\n");
    for (size_t i = 0; i < sections->count; i++) {
        const struct tune_section *section = &sections->list[i];

        fprintf(file, CARD_PREFIX "%" PRIu64 " %" PRIu32 " %" PRIu32 " %s\n", section->card.library,
                section->card.capability, section->card.multiprocessors, section->card.name);
        for (size_t j = 0; j < section->table.count; j++) {
            fputs(PLAN_PREFIX, file);
            print_words(file, section->table.entries[j].key, TUNE_KEY_WORDS);
            fputc(' ', file);
            print_words(file, section->table.entries[j].algo, TUNE_ALGO_WORDS);
            fputc('\n', file);
        }
    }
    fflush(file);
    fprintf(file, END_PREFIX "%016" PRIx64 "\n", checksum(text, *bytes));
    failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) {
        free(text);
        return NULL;
    }
    return text;
}

static bool write_all(int file, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t now = write(file, text, bytes);

        if (now < 0 && errno == EINTR) {
            continue;
        }
        if (now < 0) {
            return false;
        }
        text += now;
        bytes -= (size_t)now;
    }
    return true;
}

/* The rename itself reaches the disk with the folder; where that cannot be, it is atomic still. */
static void folder_sync(const char *path)
{
    char *folder = strdup(path);
    char *slash = folder != NULL ? strrchr(folder, '/') : NULL;
    int file;

    if (slash != NULL) {
        slash[slash == folder] = '\0';
    }
    file = open(slash != NULL ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file >= 0) {
        (void)fsync(file);
        close(file);
    }
    free(folder);
}

static enum fp8pipe_status text_replace(const char *path, const char *text, size_t bytes)
{
    char *made_path = path_with(path, ".tmp.%ld", (long)getpid());
    enum fp8pipe_status status = FP8PIPE_OK;
    int file, error = 0;

    if (made_path == NULL) {
        return status_fail(FP8PIPE_ENOMEM, "tune file %s: no host memory for its name", path);
    }
    file = open(made_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) {
        status = refuse_io(path, "written");
        goto free_path;
    }
    if (!write_all(file, text, bytes) || fsync(file) != 0) {
        error = errno;
    }
    if (close(file) != 0 && error == 0) {
        error = errno;
    }
    if (error == 0 && rename(made_path, path) != 0) {
        error = errno;
    }
    if (error != 0) {
        unlink(made_path);
        errno = error;
        status = refuse_io(path, "written");
        goto free_path;
    }
    folder_sync(path);
free_path:
    free(made_path);
    return status;
}

static enum fp8pipe_status merge(struct tune_sections *sections, const struct tune_card *card,
                                 const struct tune_table *table)
{
    struct tune_section *section = tune_sections_find(sections, card);
    enum fp8pipe_status status = FP8PIPE_OK;

    if (section == NULL) {
        status = tune_sections_add(sections, card, &section);
    }
    for (size_t i = 0; i < table->count && status == FP8PIPE_OK; i++) {
        status = tune_table_put(&section->table, &table->entries[i]);
    }
    return status;
}

enum fp8pipe_status tune_file_write(const char *path, const struct tune_card *card,
                                    const struct tune_table *table, bool *damaged)
{
    struct tune_sections sections;
    bool missing, other;
    enum fp8pipe_status status;
    size_t bytes;
    char *text;
    int lock;

    *damaged = false;
    status = lock_take(path, &lock);
    if (status != FP8PIPE_OK) {
        return status;
    }
    status = sections_read(path, &sections, &missing, &other);
    if (status == FP8PIPE_ESTATE && !other) {
        *damaged = true;
        status = FP8PIPE_OK;
    } else if (status == FP8PIPE_EINVAL && missing) {
        status = FP8PIPE_OK;
    }
    if (status != FP8PIPE_OK) {
        goto close_lock;
    }
    status = merge(&sections, card, table);
    /* What is beyond the limits is left out. */
    if (status != FP8PIPE_OK && status != FP8PIPE_EAGAIN) {
        goto free_sections;
    }
    text = sections_print(&sections, &bytes);
    if (text == NULL) {
        status = status_fail(FP8PIPE_ENOMEM, "tune file %s: no host memory for it", path);
        goto free_sections;
    }
    status = text_replace(path, text, bytes);
    free(text);
free_sections:
    tune_sections_free(&sections);
close_lock:
    close(lock);
    return status;
}
