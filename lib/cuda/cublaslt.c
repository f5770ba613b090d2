#include "cublaslt.h"

#include <dlfcn.h>
#include <string.h>

#include "status.h"

#define STRING(x) #x
#define STRING_OF(x) STRING(x)
#define CUBLASLT_NAME "libcublasLt.so." STRING_OF(CUBLAS_VER_MAJOR)

static enum fp8pipe_status entries_find(struct cublaslt *lt)
{
    const struct {
        const char *name;
        void *field;
    } entries[] = {
#define CUBLASLT_ENTRY(name) {#name, &lt->name},
        CUBLASLT_ENTRIES(CUBLASLT_ENTRY)
#undef CUBLASLT_ENTRY
    };

    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        void *entry = dlsym(lt->library, entries[i].name);

        if (entry == NULL)
            return status_fail(FP8PIPE_ENODEV, "%s has no %s: it is not the library of CUDA %d",
                               CUBLASLT_NAME, entries[i].name, CUBLAS_VER_MAJOR);
        memcpy(entries[i].field, &entry, sizeof(entry));
    }
    return FP8PIPE_OK;
}

enum fp8pipe_status cublaslt_open(struct cublaslt *lt)
{
    enum fp8pipe_status status;
    cublasStatus_t error;

    memset(lt, 0, sizeof(*lt));
    lt->library = dlopen(CUBLASLT_NAME, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (lt->library == NULL)
        return status_fail(
            FP8PIPE_ENODEV,
            "%s was not found by the dynamic loader: add the lib64 folder of CUDA %d "
            "to LD_LIBRARY_PATH (%s)",
            CUBLASLT_NAME, CUBLAS_VER_MAJOR, dlerror());
    status = entries_find(lt);
    if (status != FP8PIPE_OK)
        goto close_library;
    lt->version = lt->cublasLtGetVersion();
    if (lt->version / 10000 != CUBLAS_VER_MAJOR) {
        status = status_fail(FP8PIPE_ENODEV, "%s says that it is version %zu, wanted %d",
                             CUBLASLT_NAME, lt->version, CUBLAS_VERSION);
        goto close_library;
    }
    error = lt->cublasLtCreate(&lt->handle);
    if (error != CUBLAS_STATUS_SUCCESS) {
        status = cublaslt_fail(lt, error, FP8PIPE_ENODEV, "cublasLtCreate", CUBLASLT_NAME);
        goto close_library;
    }
    return FP8PIPE_OK;

close_library:
    dlclose(lt->library);
    memset(lt, 0, sizeof(*lt));
    return status;
}

void cublaslt_close(struct cublaslt *lt)
{
    if (lt->library == NULL)
        return;
    lt->cublasLtDestroy(lt->handle);
    dlclose(lt->library);
    memset(lt, 0, sizeof(*lt));
}

enum fp8pipe_status cublaslt_fail(const struct cublaslt *lt, cublasStatus_t error,
                                  enum fp8pipe_status otherwise, const char *call,
                                  const char *object)
{
    enum fp8pipe_status status = otherwise;

    if (error == CUBLAS_STATUS_ALLOC_FAILED)
        status = FP8PIPE_ENOMEM;
    else if (error == CUBLAS_STATUS_NOT_SUPPORTED || error == CUBLAS_STATUS_ARCH_MISMATCH)
        status = FP8PIPE_ENOTSUP;
    return status_fail(status, "%s: %s: %s", object, call, lt->cublasLtGetStatusName(error));
}
