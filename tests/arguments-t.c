/* Command lines of the examples and benchmarks: what is set, and what is refused with a
 * sentence. */
#include "examples/arguments.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util.h"

enum shade { DARK, LIGHT };

struct fields {
    bool loud;
    int64_t depth;
    double rate;
    const char *only;
    FILE *out;
    enum shade shade;
    bool train;
    bool help;
};

#define AT(field) offsetof(struct fields, field)

static const struct argument_choice shades[] = {{"dark", DARK}, {"light", LIGHT}, {NULL, 0}};
static const struct argument_choice modes[] = {{"forward", false}, {"train", true}, {NULL, 0}};
static const struct argument known[] = {
    {"--loud", ARGUMENT_FLAG, AT(loud), 0, 0, NULL, "a flag"},
    {"--depth", ARGUMENT_NUMBER, AT(depth), 1, 64, NULL, "blocks (3)"},
    {"--rate", ARGUMENT_REAL, AT(rate), 0, 0, NULL, "a rate (0.5)"},
    {"--only", ARGUMENT_TEXT, AT(only), 0, 0, NULL, "a text"},
    {"--out", ARGUMENT_OUTPUT, AT(out), 0, 0, NULL, "a file"},
    {"--shade", ARGUMENT_CHOICE, AT(shade), 0, 0, shades, "dark or light (dark)"},
    {"--mode", ARGUMENT_SWITCH, AT(train), 0, 0, modes, "forward or train (forward)"},
    {"--help", ARGUMENT_FLAG, AT(help), 0, 0, NULL, "this text"},
    {.name = NULL},
};

static const struct argument_program program = {"program", "Does what a test asks for."};

#define WORDS 16

/* Words with a space between; the texts of fields stay until the next line. */
static int parse(const char *words, struct fields *fields, char *error, size_t error_bytes)
{
    static char line[200];
    char name[] = "program";
    char *argv[WORDS] = {name};
    int argc = 1;

    snprintf(line, sizeof(line), "%s", words);
    for (char *word = strtok(line, " "); word && argc < WORDS; word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    return arguments_parse(known, argc, argv, fields, error, error_bytes);
}

static void test_set(void)
{
    struct fields fields = {.depth = 3};
    char error[200] = "";

    ok(parse("--loud --depth 64 --rate=0.25 --only --depth --out /dev/null --shade light "
             "--mode=train",
             &fields, error, sizeof(error)) == 0,
       "options of every kind");
    is_str(error, "", "nothing to say");
    ok(fields.loud && fields.train && !fields.help, "flags and switches");
    is_int(fields.depth, 64, "a number");
    ok(fields.rate == 0.25, "a real number, behind =");
    is_str(fields.only, "--depth", "a value that looks like an option");
    is_int(fields.shade, LIGHT, "a choice");
    ok(fields.out && fclose(fields.out) == 0, "a file is open");
}

static void test_defaults(void)
{
    struct fields fields = {.depth = 3, .rate = 0.5};
    char error[200];

    ok(parse("", &fields, error, sizeof(error)) == 0 && fields.depth == 3 && fields.rate == 0.5 &&
           !fields.only,
       "what is not given stays");
}

static void test_refused(void)
{
    static const struct {
        const char *words;
        const char *sentence;
    } cases[] = {
        {"--fast 1", "--fast is not an option; --help lists them"},
        {"--fast=1", "--fast is not an option; --help lists them"},
        {"--dept 1", "--dept is not an option; --help lists them"},
        {"depth 1", "depth is not an option; --help lists them"},
        {"=1", " is not an option; --help lists them"},
        {"--loud=1", "--loud is '1', but takes no value"},
        {"--depth", "--depth is the last argument, but needs a value"},
        {"--depth 0", "--depth is '0', but must be a whole number from 1 to 64"},
        {"--depth 65", "--depth is '65', but must be a whole number from 1 to 64"},
        {"--depth 3x", "--depth is '3x', but must be a whole number from 1 to 64"},
        {"--depth=", "--depth is '', but must be a whole number from 1 to 64"},
        {"--depth 99999999999999999999",
         "--depth is '99999999999999999999', but must be a whole number from 1 to 64"},
        {"--rate 0", "--rate is '0', but must be a number above 0, at most 1"},
        {"--rate nan", "--rate is 'nan', but must be a number above 0, at most 1"},
        {"--rate 1.5", "--rate is '1.5', but must be a number above 0, at most 1"},
        {"--only=", "--only is '', but must not be empty"},
        {"--out /nowhere/out",
         "--out is '/nowhere/out', which cannot be written: No such file or directory"},
        {"--shade grey", "--shade is 'grey', but must be one of dark light"},
        {"--mode 1", "--mode is '1', but must be one of forward train"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fields fields = {.depth = 3};
        char error[200] = "";

        ok(parse(cases[i].words, &fields, error, sizeof(error)) < 0, "%s is refused",
           cases[i].words);
        is_str(error, cases[i].sentence, "its sentence");
    }
}

/* What is in a file is not the command line's to drop. */
static void test_kept(void)
{
    struct fields fields = {.depth = 3};
    char path[] = "/tmp/arguments-t.XXXXXX", words[100], error[200], got[20] = "";
    int fd = mkstemp(path);

    if (fd < 0 || write(fd, "numbers", 7) != 7) {
        bail("no file in /tmp");
    }
    snprintf(words, sizeof(words), "--out %s", path);
    ok(parse(words, &fields, error, sizeof(error)) == 0 && fclose(fields.out) == 0,
       "a file that is there is open");
    snprintf(words, sizeof(words), "--out %s --fast", path);
    ok(parse(words, &fields, error, sizeof(error)) < 0 && fclose(fields.out) == 0,
       "a command line with one is refused");
    is_int(pread(fd, got, sizeof(got) - 1, 0), 7, "and what was in it");
    is_str(got, "numbers", "is in it yet");
    unlink(path);
    close(fd);
}

/* A sentence that is longer than its room. */
static void test_room(void)
{
    struct fields fields;
    char error[24];

    ok(parse("--shade grey", &fields, error, sizeof(error)) < 0, "little room");
    is_str(error, "--shade is 'grey', but ", "the sentence is cut");
}

static void test_help(void)
{
    char text[2000] = "";
    FILE *file = fmemopen(text, sizeof(text), "w");

    if (!file) {
        bail("no file in memory");
    }
    arguments_help(file, &program, known);
    fclose(file);
    ok(strstr(text, "usage: program [OPTION [VALUE]]...\nDoes what a test asks for.\n\n"
                    "  --loud  a flag\n  --depth blocks (3)\n") == text,
       "help begins with how the program is called and what it does, then the options in order");
    ok(strstr(text, "\n  --help  this text\n") != NULL, "and has every option");
}

/* The exit status of a program with this one argument. */
static int taken(const char *word)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        struct fields fields = {.depth = 3};
        char name[] = "program";
        char argument[20];
        char *argv[] = {name, argument};

        snprintf(argument, sizeof(argument), "%s", word);
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) {
            _exit(4);
        }
        arguments_take(&program, known, 2, argv, &fields);
        _exit(3);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status)
               ? WEXITSTATUS(status)
               : -1;
}

int main(void)
{
    test_set();
    test_defaults();
    test_refused();
    test_kept();
    test_room();
    test_help();
    is_int(taken("--fast"), 2, "a refused command line ends the program");
    is_int(taken("--help"), 0, "so does help");
    is_int(taken("--loud"), 3, "others go on");
    return done_testing();
}
