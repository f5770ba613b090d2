#!/bin/sh
# ./run runs a program, says how it is called, and ends what takes too long.
set -u
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"

[ -x ./run ] || skip_all "it is in a build folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

refused() {
    ./run "$@" >"$work/out" 2>"$work/err"
    [ $? = 2 ] && [ ! -s "$work/out" ] && grep -q '^usage: ./run \[--timeout SECONDS\] PROGRAM' \
        "$work/err" || { cat "$work/out" "$work/err"; return 1; }
}
ok "nothing to run" refused
ok "no seconds" refused --timeout
ok "nothing to run for so long" refused --timeout 5
ok "an option that it does not know" refused --fast true
ok "help" sh -c './run --help | grep "^usage: ./run "'

status_is() {
    wanted=$1
    shift
    "$@" >"$work/out"
    [ $? = "$wanted" ]
}
ok "a program and its arguments" status_is 3 ./run sh -c 'exit $1' sh 3
ok "in good time" status_is 3 ./run --timeout 60 sh -c 'exit $1' sh 3
if command -v timeout >/dev/null; then
    unset FP8PIPE_TEST_TIMEOUT
    ok "too slow" status_is 124 ./run --timeout 1 sleep 60
    ok "which fails a test" grep -q '^not ok - ends within [13] seconds$' "$work/out"
else
    skip "no timeout on this machine"
fi
done_testing
