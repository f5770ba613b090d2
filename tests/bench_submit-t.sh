#!/bin/sh
# bench/submit makes as many submits as it is told to, one by one and in bursts.
set -u
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"

bench=bench/submit
[ -x "$bench" ] || skip_all "it is not built here"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
OPENBLAS_NUM_THREADS=1
export OPENBLAS_NUM_THREADS

"$bench" --ops 1 --runs 1 >"$work/out" 2>&1 || {
    ! grep 'two CPUs are not to be had' "$work/out" || skip_all "it needs two CPUs"
}

has() {
    grep -q "$1" "$2" || { cat "$2"; return 1; }
}

ok "few submits" "$bench" --ops 30 --runs 2 --json "$work/json"
ok "make short bursts" has '"bursts": {"runs": 2, "producers": 4, "submits": 30,' "$work/json"
ok "one submit" "$bench" --ops 1 --runs 1 --json "$work/json"
ok "makes a burst of one" has '"producers": 4, "submits": 1,' "$work/json"
ok "numbers go where standard output does" sh -c \
    '"$1" --ops 1 --runs 1 --json /dev/stdout | grep "\"bursts\": "' sh "$bench"

keeps() {
    echo numbers >"$work/kept"
    ! CUDA_VISIBLE_DEVICES='' "$bench" --json "$work/kept" "$@" >"$work/out" 2>&1 &&
        echo numbers | cmp - "$work/kept"
}
ok "a command line that is refused leaves the file as it was" keeps --fast
ok "so does a backend that is not there" keeps --backend cuda
ok "help names both" sh -c '"$1" --help | grep "each caller and of each producer"' sh "$bench"
ok "and where they are fewer" sh -c \
    '"$1" --help | grep "sleeping launcher 500 at most"' sh "$bench"
done_testing
