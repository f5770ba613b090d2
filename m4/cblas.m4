dnl FP8PIPE_CBLAS
dnl The host backend's GEMM: OpenBLAS by pkg-config, then -lopenblas, then -lcblas.
dnl Sets CBLAS_CPPFLAGS, CBLAS_LIBS and cblas_summary; CBLAS_CFLAGS and CBLAS_LIBS given by the user win.
AC_DEFUN([FP8PIPE_CBLAS], [
AC_ARG_VAR([CBLAS_CFLAGS], [preprocessor flags for cblas.h])
AC_ARG_VAR([CBLAS_LIBS], [linker flags for CBLAS])
AS_IF([test -z "$CBLAS_LIBS" && test -n "$PKG_CONFIG" && $PKG_CONFIG --exists openblas],
    [CBLAS_LIBS=$($PKG_CONFIG --libs openblas)
     CBLAS_CFLAGS=$($PKG_CONFIG --cflags openblas)])

saved_CPPFLAGS=$CPPFLAGS
saved_LIBS=$LIBS
CPPFLAGS="$CPPFLAGS $CBLAS_CFLAGS"
AC_CHECK_HEADER([cblas.h], [],
    [AC_MSG_ERROR([cblas.h was not found: install libopenblas-dev, or set CBLAS_CFLAGS and CBLAS_LIBS])])
cblas_found=
AC_MSG_CHECKING([for a CBLAS library])
for candidate in "$CBLAS_LIBS" -lopenblas -lcblas; do
    LIBS="$candidate $saved_LIBS"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cblas.h>]],
                                    [[float x = 0;
                                      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, 1, 1, 1,
                                                  1, &x, 1, &x, 1, 0, &x, 1);]])],
        [cblas_found=$candidate; break])
done
AS_IF([test -z "$cblas_found"],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([no CBLAS library was found: install libopenblas-dev, or set CBLAS_CFLAGS and CBLAS_LIBS])])
AC_MSG_RESULT([$cblas_found])
CBLAS_LIBS=$cblas_found
LIBS="$CBLAS_LIBS $saved_LIBS"
AC_CHECK_FUNCS([openblas_set_num_threads openblas_get_num_threads openblas_get_config])
CPPFLAGS=$saved_CPPFLAGS
LIBS=$saved_LIBS
cblas_summary=$CBLAS_LIBS
])
