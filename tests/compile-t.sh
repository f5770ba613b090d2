#!/bin/sh
# What a forgotten header leads to is an error with the flags of this build, not a warning.
set -u
LC_ALL=C
export LC_ALL
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"

[ -f Makefile ] && [ -f config.h ] || skip_all "the flags are in a build folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
printf 'include Makefile\ncompiled:\n\t@$(COMPILE) -c $(SOURCE) -o $(SOURCE).o\n' >"$work/rules"

# SOURCE's text is a file of its own.
compiles() {
    echo "$1" >"$work/source.c"
    make -s -f "$work/rules" compiled SOURCE="$work/source.c" 2>&1
}
refused() {
    ! compiles "$1" && compiles "$1" | grep -q "error: .*$2"
}
ok "a file" compiles 'int first(int *x);
int first(int *x) { return x[0]; }'
ok "a function that nothing declares" refused 'int two(void);
int two(void) { return undeclared(1); }' 'undeclared'
ok "an address of another type" refused 'int *its(long *x);
int *its(long *x) { return x; }' 'incompatible'
ok "an address where a number is wanted" refused 'int of(int *x);
int of(int *x) { return x; }' 'integer'
done_testing
