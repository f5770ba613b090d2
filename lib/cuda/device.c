#include "internal.h"

#include <string.h>

/* ---- Finding it --------------------------------------------------------------------------- */

static enum fp8pipe_status driver_entry(const char *name, unsigned version, void *field)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *entry = NULL;
    cudaError_t error;

#if CUDART_VERSION >= 12050
    error = cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found);
#else
    (void)version;
    error = cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ENODEV, "cudaGetDriverEntryPoint", "%s", name);
    if (found != cudaDriverEntryPointSuccess || entry == NULL)
        return status_fail(FP8PIPE_ENODEV, "the NVIDIA driver has no %s: it is too old", name);
    memcpy(field, &entry, sizeof(entry));
    return FP8PIPE_OK;
}

static enum fp8pipe_status driver_open(struct cuda_driver *driver)
{
    const struct {
        const char *name;
        unsigned version; /* the one whose signature cuda_driver has */
        void *field;
    } entries[] = {
        {"cuDeviceGet", 2000, &driver->device_get},
        {"cuDevicePrimaryCtxRetain", 7000, &driver->context_retain},
        {"cuDevicePrimaryCtxRelease", 11000, &driver->context_release},
        {"cuCtxPushCurrent", 4000, &driver->context_push},
        {"cuCtxPopCurrent", 4000, &driver->context_pop},
        {"cuMemGetAddressRange", 3020, &driver->address_range},
        {"cuGraphKernelNodeGetParams", 12000, &driver->node_params},
        {"cuGraphKernelNodeGetAttribute", 11000, &driver->node_attribute},
        {"cuLaunchKernelEx", 11060, &driver->launch},
    };

    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        enum fp8pipe_status status =
            driver_entry(entries[i].name, entries[i].version, entries[i].field);

        if (status != FP8PIPE_OK)
            return status;
    }
    return FP8PIPE_OK;
}

static enum fp8pipe_status device_count(int *count)
{
    cudaError_t error = cudaGetDeviceCount(count);

    if (error == cudaErrorInsufficientDriver) {
        cuda_forget(error);
        return status_fail(
            FP8PIPE_ENODEV,
            "no NVIDIA driver for CUDA %d.%d was found: install or update it, or use "
            "the host backend (FP8PIPE_BACKEND=host)",
            CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    }
    if (error == cudaErrorNoDevice || (error == cudaSuccess && *count == 0)) {
        cuda_forget(error);
        return status_fail(FP8PIPE_ENODEV,
                           "the NVIDIA driver sees no CUDA device: look at nvidia-smi and at "
                           "CUDA_VISIBLE_DEVICES, or use the host backend (FP8PIPE_BACKEND=host)");
    }
    if (error != cudaSuccess) {
        cuda_forget(error);
        return status_fail(FP8PIPE_ENODEV, "cudaGetDeviceCount: %s (%s)", cudaGetErrorString(error),
                           cudaGetErrorName(error));
    }
    return FP8PIPE_OK;
}

static enum fp8pipe_status device_attribute(int device, enum cudaDeviceAttr attribute, int *value)
{
    cudaError_t error = cudaDeviceGetAttribute(value, attribute, device);

    if (error != cudaSuccess)
        return cuda_fail(error, FP8PIPE_ENODEV, "cudaDeviceGetAttribute", "CUDA device %d", device);
    return FP8PIPE_OK;
}

static enum fp8pipe_status device_check(struct cuda_backend *backend, int32_t device)
{
    enum fp8pipe_status status;
    int count = 0, major = 0, minor = 0;

    status = device_count(&count);
    if (status != FP8PIPE_OK)
        return status;
    if (device < 0 || device >= count)
        return status_fail(FP8PIPE_ENODEV, "device is %d: this process sees CUDA devices 0 to %d",
                           (int)device, count - 1);
    status = device_attribute(device, cudaDevAttrComputeCapabilityMajor, &major);
    if (status != FP8PIPE_OK)
        return status;
    status = device_attribute(device, cudaDevAttrComputeCapabilityMinor, &minor);
    if (status != FP8PIPE_OK)
        return status;
    if (major < 8)
        return status_fail(
            FP8PIPE_ENODEV,
            "CUDA device %d has compute capability %d.%d: 8.0 or more is needed, 8.9 "
            "for FP8 GEMMs",
            (int)device, major, minor);
    backend->device = device;
    backend->capability = 10 * major + minor;
    return FP8PIPE_OK;
}

enum fp8pipe_status cuda_device_open(struct cuda_backend *backend, int32_t device)
{
    enum fp8pipe_status status = device_check(backend, device);
    CUresult error;

    if (status != FP8PIPE_OK)
        return status;
    status = driver_open(&backend->driver);
    if (status != FP8PIPE_OK)
        return status;
    error = backend->driver.device_get(&backend->driver_device, device);
    if (error == CUDA_SUCCESS)
        error = backend->driver.context_retain(&backend->context, backend->driver_device);
    if (error != CUDA_SUCCESS)
        return status_fail(error == CUDA_ERROR_OUT_OF_MEMORY ? FP8PIPE_ENOMEM : FP8PIPE_ENODEV,
                           "CUDA device %d: cuDevicePrimaryCtxRetain: error %d%s", (int)device,
                           (int)error,
                           error == CUDA_ERROR_INVALID_DEVICE
                               ? " (is it in exclusive mode, used by another process?)"
                               : "");
    return FP8PIPE_OK;
}

void cuda_device_close(struct cuda_backend *backend)
{
    if (backend->context != NULL)
        (void)backend->driver.context_release(backend->driver_device);
}

/* ---- Making it current -------------------------------------------------------------------- */

/*
 * The capture mode: launchers allocate, query and synchronise while some other thread captures a
 * stream in the global mode, which would make these calls fail and its capture void.
 */
void cuda_enter(struct backend *base, struct backend_scope *scope)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t error;

    scope->device = backend->device;
    scope->entered = backend->driver.context_push(backend->context) == CUDA_SUCCESS;
    error = cudaThreadExchangeStreamCaptureMode(&mode);
    /* While the process ends both may fail; then nothing that follows reaches the device either. */
    if (error != cudaSuccess) {
        cuda_forget(error);
        mode = cudaStreamCaptureModeRelaxed;
    }
    scope->capture_mode = (int32_t)mode;
}

void cuda_leave(struct backend *base, struct backend_scope *scope)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)scope->capture_mode;
    CUcontext popped;

    cuda_forget(cudaThreadExchangeStreamCaptureMode(&mode));
    if (scope->entered)
        (void)backend->driver.context_pop(&popped);
    scope->entered = false;
}
