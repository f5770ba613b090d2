#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

void cuda_forget(cudaError_t error)
{
    if (error != cudaSuccess && cudaPeekAtLastError() == error)
        (void)cudaGetLastError();
}

/* What no later call recovers from, and what only says that the process is ending. */
static bool error_is_lasting(cudaError_t error)
{
    switch (error) {
    case cudaErrorCudartUnloading:
    case cudaErrorInitializationError:
    case cudaErrorDeviceUninitialized:
    case cudaErrorContextIsDestroyed:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorUnknown:
        return true;
    default:
        return false;
    }
}

static bool error_is_capture(cudaError_t error)
{
    switch (error) {
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureWrongThread:
    case cudaErrorCapturedEvent:
        return true;
    default:
        return false;
    }
}

enum fp8pipe_status cuda_fail(cudaError_t error, enum fp8pipe_status otherwise, const char *call,
                              const char *object, ...)
{
    enum fp8pipe_status status = otherwise;
    char name[STATUS_SENTENCE_BYTES];
    va_list args;

    va_start(args, object);
    vsnprintf(name, sizeof(name), object, args);
    va_end(args);
    cuda_forget(error);
    if (error == cudaErrorMemoryAllocation)
        status = FP8PIPE_ENOMEM;
    else if (error_is_capture(error))
        status = FP8PIPE_ECAPTURE;
    else if (error_is_lasting(error))
        status = FP8PIPE_EDEVICE;
    return status_fail(status, "%s: %s: %s (%s)", name, call, cudaGetErrorString(error),
                       cudaGetErrorName(error));
}
