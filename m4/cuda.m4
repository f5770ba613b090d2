dnl FP8PIPE_CUDA
dnl The cuda backend, built where nvcc, cublasLt.h and libcudart_static.a are found. Nothing of CUDA is
dnl linked but its static runtime; cuBLASLt is loaded when a pipe opens.
dnl Sets CUDA_CPPFLAGS, CUDA_LIBS, NVCC, NVCC_CCBIN, NVCC_ARCH_FLAGS, NVCC_HOST_FLAGS,
dnl NVCC_LIBTOOL_FLAGS, cuda_loader_path (for the tests, where the loader would not find cuBLASLt) and cuda_summary;
dnl defines HAVE_CUDA.
AC_DEFUN([FP8PIPE_CUDA], [
AC_ARG_VAR([NVCC], [CUDA compiler])
AC_ARG_VAR([NVCCFLAGS], [CUDA compiler flags])
AC_ARG_VAR([NVCC_CCBIN], [C++ compiler that nvcc uses])
AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda=DIR|yes|no], [CUDA toolkit; default: used if found])],
    [], [with_cuda=auto])
AC_ARG_WITH([cuda-arch],
    [AS_HELP_STRING([--with-cuda-arch="ARCH ..."],
        [GPU architectures, each with code of its own; code that newer ones compile when loading
         comes from the last plain number (default: 80 90a)])],
    [], [with_cuda_arch="80 90a"])
NVCCFLAGS=${NVCCFLAGS-"-O3 -lineinfo"}
cuda_missing=
AS_IF([test "$with_cuda" = no], [cuda_missing="switched off"], [_FP8PIPE_CUDA_FIND])
AS_IF([test -z "$cuda_missing"],
    [AC_DEFINE([HAVE_CUDA], [1], [Define to 1 if the cuda backend is built.])
     cuda_summary="$cuda_root, architectures $with_cuda_arch"],
    [test "$with_cuda" = no || test "$with_cuda" = auto],
    [CUDA_CPPFLAGS= CUDA_LIBS= NVCC= NVCC_ARCH_FLAGS= cuda_loader_path=
     cuda_summary="no ($cuda_missing)"],
    [AC_MSG_ERROR([--with-cuda=$with_cuda: $cuda_missing])])
AM_CONDITIONAL([HAVE_CUDA], [test -z "$cuda_missing"])
AC_SUBST([CUDA_CPPFLAGS])
AC_SUBST([CUDA_LIBS])
AC_SUBST([NVCC_ARCH_FLAGS])
AC_SUBST([NVCC_HOST_FLAGS])
dnl libtool runs the compiler once for the shared library and once for the static one; the host flags
dnl make every object fit for both. In a static-only build -shared would be refused.
AS_IF([test "$enable_shared" = yes], [NVCC_LIBTOOL_FLAGS="-prefer-non-pic -shared"],
    [NVCC_LIBTOOL_FLAGS=-prefer-non-pic])
AC_SUBST([NVCC_LIBTOOL_FLAGS])
AC_SUBST([cuda_loader_path])
])

dnl Fills the variables, or says in cuda_missing what is not there.
AC_DEFUN([_FP8PIPE_CUDA_FIND], [
AS_CASE([$with_cuda],
    [yes|auto], [cuda_path="${CUDA_HOME:+$CUDA_HOME/bin:}$PATH:/usr/local/cuda/bin"],
    [cuda_path="$with_cuda/bin"])
AC_PATH_PROG([NVCC], [nvcc], [], [$cuda_path])
AC_CHECK_PROGS([NVCC_CCBIN], [g++ c++ clang++])

dnl Each -fsanitize= by itself: nvcc splits what it hands on at commas.
NVCC_HOST_FLAGS="--compiler-options=-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics,-Wall"
for one in $sanitizers; do
    AS_VAR_APPEND([NVCC_HOST_FLAGS], [" --compiler-options=-fsanitize=$one"])
done
NVCC_ARCH_FLAGS=
cuda_ptx=
for one in $with_cuda_arch; do
    AS_VAR_APPEND([NVCC_ARCH_FLAGS], [" -gencode=arch=compute_$one,code=sm_$one"])
    dnl 90a and its like name one generation's extras: newer GPUs cannot compile that code.
    AS_CASE([$one], [*@<:@!0-9@:>@*], [], [cuda_ptx=$one])
done
AS_IF([test -n "$cuda_ptx"],
    [AS_VAR_APPEND([NVCC_ARCH_FLAGS], [" -gencode=arch=compute_$cuda_ptx,code=compute_$cuda_ptx"])])

dnl Kernels lie in the library compressed; since CUDA 12.8 there is a way that makes a third of them.
AS_IF([test -n "$NVCC" && "$NVCC" --help 2>/dev/null | grep -e --compress-mode >/dev/null],
    [AS_VAR_APPEND([NVCC_ARCH_FLAGS], [" --compress-mode=size"])])

AS_IF([test -z "$NVCC"], [cuda_missing="nvcc not found"],
      [test -z "$NVCC_CCBIN"], [cuda_missing="nvcc needs a C++ compiler such as g++"],
      [_FP8PIPE_CUDA_TRY])
])

AC_DEFUN([_FP8PIPE_CUDA_TRY], [
dnl nvcc may be a link into a toolkit, or lie with the system's programs (Debian's own package).
cuda_root=$(dirname "$(dirname "$(readlink -f "$NVCC")")")
AS_CASE([$with_cuda], [yes|auto], [], [cuda_root=$with_cuda])
cuda_include=$cuda_root/include
AS_IF([test "$cuda_include" = /usr/include],
    dnl As -isystem it would come before the compiler's own headers.
    [CUDA_CPPFLAGS=], [CUDA_CPPFLAGS="-isystem $cuda_include"])
cuda_lib=
for one in "$cuda_root/lib64" "$cuda_root/targets/$host_cpu-linux/lib" "$cuda_root/lib" \
    "$cuda_root/lib/$host_cpu-linux-gnu"; do
    AS_IF([test -f "$one/libcudart_static.a"], [cuda_lib=$one; break])
done
CUDA_LIBS="-L$cuda_lib -lcudart_static -lrt"
AS_IF([test -z "$cuda_lib"], [cuda_missing="no libcudart_static.a under $cuda_root"], [
    saved_CPPFLAGS=$CPPFLAGS
    CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
    AC_CHECK_HEADER([cuda_runtime_api.h], [], [cuda_missing="no cuda_runtime_api.h in $cuda_include"])
    AC_CHECK_HEADER([cublasLt.h], [], [cuda_missing="no cublasLt.h in $cuda_include"])
    AC_CHECK_HEADER([nvtx3/nvToolsExt.h],
        [AC_DEFINE([HAVE_NVTX], [1], [Define to 1 if the toolkit has NVTX 3.])], [], [])
    CPPFLAGS=$saved_CPPFLAGS])

AS_IF([test -z "$cuda_missing"], [
    AC_MSG_CHECKING([whether $NVCC compiles for $with_cuda_arch with $NVCC_CCBIN])
    AS_ECHO(["__global__ void k(float *x) { *x = 0; } void f(float *x) { k<<<1, 1>>>(x); }"]) > conftest.cu
    AS_IF([AM_RUN_LOG([$NVCC -ccbin $NVCC_CCBIN $NVCC_ARCH_FLAGS $NVCC_HOST_FLAGS $NVCCFLAGS -c conftest.cu -o conftest.$ac_objext])],
        [AC_MSG_RESULT([yes])],
        [AC_MSG_RESULT([no])
         cuda_missing="nvcc does not work with $NVCC_CCBIN, see config.log"])
    rm -f conftest.cu conftest.$ac_objext])

dnl A library that the loader's cache does not list is found through LD_LIBRARY_PATH alone.
AS_IF([test -z "$cuda_missing"], [
    AC_MSG_CHECKING([whether the loader finds cuBLASLt])
    cuda_loader_path=$cuda_lib
    cuda_loader="no, the tests look in $cuda_lib"
    for one in "$cuda_lib"/libcublasLt.so.*; do
        AS_IF([(ldconfig -p || /sbin/ldconfig -p) 2>/dev/null | grep -qF "$(basename "$one") "],
            [cuda_loader_path= cuda_loader=yes])
    done
    AC_MSG_RESULT([$cuda_loader])])
])
