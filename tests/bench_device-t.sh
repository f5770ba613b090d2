#!/bin/sh
# Benchmarks of CUDA say in one sentence that they need a GPU where there is none to be seen,
# and leave the file of an earlier run as it is.
set -u
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"

[ -x bench/kernels ] && [ -x bench/issue ] || skip_all "they are there in a build with CUDA alone"

sentence='it needs an NVIDIA GPU with its driver, and CUDA finds none: [a-zA-Z]'
without_gpu() {
    said=$(CUDA_VISIBLE_DEVICES='' "bench/$1" 2>&1)
    [ $? = 1 ] && [ "$(echo "$said" | wc -l)" = 1 ] &&
        echo "$said" | grep "^$1: $sentence" ||
        { echo "$said"; return 1; }
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
keeps() {
    echo numbers >"$work/json"
    ! CUDA_VISIBLE_DEVICES='' "bench/$1" --json "$work/json" 2>"$work/err" &&
        echo numbers | cmp - "$work/json"
}
for program in kernels issue; do
    ok "$program without a GPU" without_gpu $program
    ok "$program keeps the file of an earlier run then" keeps $program
    ok "$program --help needs none" sh -c '"$1" --help | grep "on CUDA"' sh bench/$program
done
done_testing
