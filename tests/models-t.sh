#!/bin/sh
# The models in models/ hold, and each fault that can be put into them is found: a model that holds
# whatever one does to it would show nothing.
set -u
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"
models=$(cd "$srcdir/models" && pwd) || exit 1

[ -z "${FP8PIPE_SANITIZER:-}" ] || skip_all "a model is the same in every build"
command -v spin >/dev/null || skip_all "spin is not there"
command -v gcc >/dev/null || skip_all "gcc is not there, which compiles what spin writes"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
cd "$work" || exit 1

# MODEL PAN-OPTION [-DNAME]...: what the search says, which covers every state or ends at a fault.
search() {
    model=$1
    option=$2
    shift 2
    rm -f pan pan.* ./*.trail
    spin "$@" -a "$models/$model.pml" || return
    gcc -O1 -w -DSAFETY -DMEMLIM=2048 -o pan pan.c || return
    ./pan -m100000 ${option:+"$option"}
}

complete() {
    search "$@" >report 2>&1
    grep -q 'errors: 0' report && ! grep -qE 'max search depth too small|reached -DMEMLIM' report ||
        { cat report; return 1; }
}

# KIND MODEL ...: the search finds a fault of this kind.
finds() {
    kind=$1
    shift
    search "$@" >report 2>&1
    grep -q "^pan:1: $kind" report || { cat report; return 1; }
}

ok "nobody sleeps for ever at a ring" complete park ''
ok "without the producer's barrier a wake-up is lost" \
    finds 'invalid end state' park '' -DNO_PRODUCER_FENCE
ok "without the consumer's barrier a wake-up is lost" \
    finds 'invalid end state' park '' -DNO_CONSUMER_FENCE

ok "the library's own order has no cycle, and is one" complete order ''
ok "the same in INLINE" complete order '' -DINLINE
# -A: the order breaks as well; here the cycle counts.
ok "claims apart from the words make a cycle" finds 'invalid end state' order -A -DAPART
ok "words taken in any order make a cycle" finds 'invalid end state' order -A -DUNORDERED
ok "a writer that does not wait for users overtakes them" \
    finds 'assertion violated' order '' -DNO_USERS

ok "close frees what nobody uses, two users and closers" complete close ''
ok "the same with two submitters on each lane" \
    complete close '' -DUSERS=1 -DSUBMITTERS=2 -DCLOSERS=1
ok "one look at the state is not enough to enter a pipe" \
    finds 'assertion violated' close '' -DNO_SECOND_CHECK
ok "close needs the lock of INLINE's lanes" finds 'assertion violated' close '' -DNO_INLINE_LOCK
ok "close needs the launcher's end" finds 'assertion violated' close '' -DNO_JOIN
ok "close needs to be woken by the last user" finds 'invalid end state' close '' -DNO_WAKE
done_testing
