#!/bin/sh
# Every kernel of the library is launched so that it may begin before what is in front of it in its
# stream has ended (kernels/device.cuh): each must wait for that, in all threads.
set -u
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"
cd "$srcdir" || exit 1

# One line a kernel: file, name, and how many waits its body has.
kernels() {
    awk '
        /__global__/ { kernel = 1; name = ""; waits = 0 }
        kernel && name == "" && match($0, /[a-z_]+\(const __grid_constant__/) {
            name = substr($0, RSTART, RLENGTH)
            sub(/\(.*/, "", name)
        }
        kernel && /wait_for_stream\(\);/ { waits++ }
        kernel && /^}/ { print FILENAME, name == "" ? "?" : name, waits; kernel = 0 }
    ' kernels/*.cu kernels/*.cuh include/*.cuh
}

found() {
    [ "$(kernels | grep -c .)" -ge 15 ]
}

wrong() {
    kernels | awk '$3 != 1 || $2 == "?"'
}

ok "the kernels are found" found
none "each waits for its stream, once" wrong
done_testing
