#!/bin/sh
# The arrows between modules run downward only. A module is a x.c with its x.h in lib/, the
# lib/api_*.c together, one of the folders lib/host, lib/cuda and kernels, or the public headers.
set -u
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"
cd "$srcdir" || exit 1

# From top to bottom. A module may include what stands below it or beside it, never above; beside,
# without going in circles.
layers='
api
layer_draft out_draft epilogue_draft
submit wait tracing objects move
pipe
crew
handle
lane
completion exec trace
optimizer
linear function modulate
quantize epilogue
target
scaling tensor gemm
issue
event_ring
fault table
object op ticket
ring
host cuda
backend
kernels
thread options check cache tune_file
tune_table
log ec
status
public
'

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# FILE LINE WHAT, for every #include; WHAT keeps its quotes or angles.
find lib kernels include examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort |
    xargs grep -nE '^[[:space:]]*#[[:space:]]*include' /dev/null |
    sed -E 's/^([^:]*):([0-9]*):[^"<]*(["<][^">]*[">]).*/\1 \2 \3/' >"$work/includes"

# RULE MESSAGE for every include that breaks one, and an "edge FROM TO" for each arrow.
printf '%s' "$layers" | awk -v includes="$work/includes" '
function module_of(path) {
    if (path ~ /^include\/|^fp8pipe[a-z_]*\.(h|cuh)$/) return "public"
    if (path ~ /^kernels\//) return "kernels"
    sub(/^lib\//, "", path)
    if (path ~ /^host\//) return "host"
    if (path ~ /^cuda\//) return "cuda"
    if (path ~ /^api_/) return "api"
    sub(/.*\//, "", path)
    sub(/\.[a-z]+$/, "", path)
    return path
}
function exists(path,    line, found) {
    found = (getline line < path) >= 0
    close(path)
    return found
}
# The path from the root of what a file includes by a quoted name.
function resolve(file, name,    folder) {
    folder = file
    sub(/[^\/]*$/, "", folder)
    while (name ~ /^\.\.\//) {
        sub(/^\.\.\//, "", name)
        sub(/[^\/]*\/$/, "", folder)
    }
    if (exists(folder name)) return folder name
    if (exists(name)) return name
    if (exists("lib/" name)) return "lib/" name
    if (exists("include/" name)) return "include/" name
    return name
}
NF {
    for (i = 1; i <= NF; i++) rank[$i] = -NR
}
END {
    while ((getline line < includes) > 0) {
        split(line, part, " ")
        file = part[1]
        at = file ":" part[2]
        name = substr(part[3], 2, length(part[3]) - 2)
        angled = part[3] ~ /^</
        from = file ~ /^examples\// ? "examples" : module_of(file)

        if (angled && name ~ /^(cuda|cublas|curand|cooperative_groups|nv|mma|cub|thrust)/ &&
            file !~ /^lib\/cuda\/|\.cuh?$/)
            print "cuda", at, "includes", name
        if (angled && name !~ /^fp8pipe/) continue
        target = resolve(file, name)
        to = module_of(target)
        if (from == "examples") {
            if (to != "public" && target !~ /^examples\//) print "examples", at, "includes", name
            continue
        }
        if (!(from in rank)) print "known", file, "is in no layer of tests/includes-t.sh"
        if (!(to in rank)) print "known", at, "includes", name ", which is in no layer of tests/includes-t.sh"
        if (from == to) continue
        print "edge", from, to
        if (from in rank && to in rank && rank[to] > rank[from]) print "down", at, "(" from ") includes", name, "(" to ")"
        if (to ~ /^(host|cuda)$/ && file != "lib/pipe.c") print "backends", at, "includes", name
        if (from ~ /^(host|cuda)$/ && to !~ /^(backend|kernels|public|status|log|ec|thread|options|tune_file|tune_table)$/)
            print "inside", at, "includes", name
        if (from == "kernels" && to != "public") print "kernels", at, "includes", name
        if (from == "public") print "public", at, "includes", name
    }
}' >"$work/found"

broken() {
    sed -n "s/^$1 //p" "$work/found" | sort -u
}

circles() {
    sed -n 's/^edge //p' "$work/found" | sort -u >"$work/edges"
    tsort "$work/edges" 2>&1 >/dev/null
}

# Sources that Makefile.am does not name, and so never builds, with or without their ending.
unlisted() {
    find lib kernels tests examples bench -name '*.c' -o -name '*.cu' | sort | while read -r file; do
        grep -qE "(^|[[:space:]])${file%.*}(\\.[a-z]+)?([[:space:]]|\$)" Makefile.am ||
            echo "$file is not in Makefile.am"
    done
}

ok "there is something to look at" test -s "$work/includes"
none "every module has its layer" broken known
none "arrows run downward" broken down
none "no module includes itself through others" circles
none "only lib/pipe.c knows which backends exist" broken backends
none "a backend knows its table, the kernels and the leaves" broken inside
none "kernels know nothing of lib/" broken kernels
none "public headers include public headers" broken public
none "CUDA's headers stay in lib/cuda and kernels/*.cu" broken cuda
none "every source is built" unlisted
none "examples use the public headers alone" broken examples
done_testing
