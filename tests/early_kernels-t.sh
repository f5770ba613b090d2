#!/bin/sh
# Every kernel of the library is launched so that it may begin before what is in front of it in its
# stream has ended (kernels/device.cuh): each must wait for that, in all threads and before it
# touches memory of others. Until the wait, no thread may return, and nothing is read through what
# the kernel was given.
set -u
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"
cd "$srcdir" || exit 1

# FILE...: one line a kernel: file, name, how many waits its body has, and how many lines before the
# first return or read memory: an element of a member, what a pointer points at.
kernels() {
    awk '
        function early(line) {
            sub(/^#.*/, "", line)
            gsub(/\/\*.*\*\/|\/\*.*|^ *\*( .*|\/)|\/\/.*/, "", line)
            return line ~ /(^|[^a-z_])return([^a-z_]|$)/ || line ~ /\.[a-z_]+\[/ ||
                line ~ /->/ || line ~ /(^|[-+(=!,&|?:;{}<>]) *\*+\(*[a-z_]/ ||
                line ~ /__ld[a-z]*\(/
        }
        /__global__/ { kernel = 1; name = ""; body = waits = before = 0 }
        kernel && name == "" && match($0, /[a-z_]+\(const __grid_constant__/) {
            name = substr($0, RSTART, RLENGTH)
            sub(/\(.*/, "", name)
        }
        kernel && /wait_for_stream\(\);/ { waits++ }
        kernel && body && waits == 0 && early($0) { before++ }
        kernel && /^{/ { body = 1 }
        kernel && /^}/ { print FILENAME, name == "" ? "?" : name, waits, before; kernel = 0 }
    ' "$@"
}

all() {
    kernels kernels/*.cu kernels/*.cuh include/*.cuh
}

found() {
    [ "$(all | grep -c .)" -ge 15 ]
}

wrong() {
    awk '$2 == "?" || $3 != 1 || $4 != 0'
}

# LINE...: of a kernel's body.
body() {
    printf 'static __global__ void a_kernel(const __grid_constant__ a_args args, const int *skip)\n'
    printf '{\n'
    printf '    %s\n' "$@"
    printf '}\n'
}

is_right() {
    [ -z "$(body "$@" | kernels | wrong)" ]
}

is_wrong() {
    ! is_right "$@"
}

wait='kernel_wait_for_stream();'
ok "the kernels are found" found
none "each waits for its stream, once and first of all" eval 'all | wrong'
ok "a kernel may compute before it waits" is_right 'const a_target &target = args.target;' \
    '/* Whoever has to return *does* so later. */' 'float *const to = (float *)args.to;' \
    'const int64_t rows = target.rows * args.cols;' 'shared[threadIdx.x] = args.to != NULL;' \
    "$wait" 'if (rows == 0)' '    return;' 'args.to[0] = *args.x;'
ok "it waits" is_wrong 'args.to[0] = 0;'
ok "once" is_wrong "$wait" "$wait"
for line in 'if (col >= args.to.cols) return;' 'return;' 'float x = args.x[col];' \
    'float x = args.target.scale[0];' 'float x = *args.x;' 'const float scale = *target.scale;' \
    'if (!*skip)' '*args.to = 0;' 'float x = 2 * (*args.x);' 'float x = args.table->x;' \
    'float x = __ldg(args.x);'; do
    ok "not behind: $line" is_wrong "$line" "$wait"
done
done_testing
