# TAP for the shell tests. `ok NAME COMMAND...` passes if COMMAND succeeds; what it prints is shown
# only if it fails. `none NAME COMMAND...` passes if COMMAND prints nothing. Ends with `done_testing`.
tap_run=0
tap_failed=0

tap_result() {
    tap_run=$((tap_run + 1))
    if [ "$1" = 0 ]; then
        echo "ok $tap_run - $2"
    else
        tap_failed=$((tap_failed + 1))
        echo "not ok $tap_run - $2"
        printf '%s\n' "$3" | sed 's/^/# /' >&2
    fi
}

ok() {
    tap_name=$1
    shift
    tap_output=$("$@" 2>&1)
    tap_result $? "$tap_name" "failed: $*
$tap_output"
}

none() {
    tap_name=$1
    shift
    tap_output=$("$@" 2>&1)
    [ -z "$tap_output" ]
    tap_result $? "$tap_name" "$tap_output"
}

skip() {
    tap_run=$((tap_run + 1))
    echo "ok $tap_run # SKIP $1"
}

skip_all() {
    echo "1..0 # SKIP $1"
    exit 0
}

done_testing() {
    echo "1..$tap_run"
    [ "$tap_failed" = 0 ] && [ "$tap_run" != 0 ]
    exit
}
