#include "replay.h"

#include <stdlib.h>
#include <string.h>

#include "capture.h"

/* An amax set to 0, a product and a reduction of its parts, at most, so far. */
#define REPLAY_STEPS_MAX 4
#define REPLAY_ATTRIBUTES_MAX 4

struct replay_step {
    CUfunction function; /* NULL: bytes are set to zero */
    void *zeros;
    size_t zeros_bytes;
    void **params; /* as the node has them: one of the two is NULL */
    void **extra;
    CUlaunchConfig config;
    CUlaunchAttribute attributes[REPLAY_ATTRIBUTES_MAX];
};

struct replay {
    cudaGraph_t graph; /* owns what params and extra point to */
    size_t first;      /* step that has to be issued */
    size_t count;
    struct replay_step steps[REPLAY_STEPS_MAX];
};

static void replay_drop(void *record)
{
    struct replay *replay = record;

    cuda_forget(cudaGraphDestroy(replay->graph));
    free(replay);
}

/* ---- Issuing ------------------------------------------------------------------------------ */

static cudaError_t step_launch(const struct cuda_backend *backend, cudaStream_t native,
                               const struct replay_step *step)
{
    if (step->function == NULL)
        return cudaMemsetAsync(step->zeros, 0, step->zeros_bytes, native);
    return (cudaError_t)backend->driver.launch(&step->config, step->function, step->params,
                                               step->extra);
}

static enum fp8pipe_status replay_launch(const struct cuda_backend *backend, cudaStream_t native,
                                         const struct replay *replay, size_t *launched)
{
    *launched = 0;
    for (size_t i = replay->first; i < replay->count; i++) {
        cudaError_t error = step_launch(backend, native, &replay->steps[i]);

        if (error != cudaSuccess)
            return cuda_fail(error, FP8PIPE_ELAUNCH, "cuLaunchKernelEx",
                             "step %zu of %zu of a recorded GEMM", i + 1, replay->count);
        ++*launched;
    }
    return FP8PIPE_OK;
}

enum fp8pipe_status replay_run(struct cuda_backend *backend, struct cuda_stream *stream,
                               const struct replay_key *key, bool *issued,
                               struct replay_place **out)
{
    struct replay_place *place;
    enum fp8pipe_status status;
    size_t launched;

    *issued = false;
    *out = NULL;
    if (!backend->replays)
        return FP8PIPE_OK;
    if (stream->replays == NULL)
        __atomic_store_n(&stream->replays, replay_table_create(REPLAY_PLACES, replay_drop),
                         __ATOMIC_RELEASE);
    if (stream->replays == NULL)
        return FP8PIPE_OK;
    place = replay_table_look(stream->replays, key);
    if (place->record == NULL) {
        *out = replay_place_due(place) ? place : NULL;
        return FP8PIPE_OK;
    }
    status = replay_launch(backend, stream->native, place->record, &launched);
    *issued = status == FP8PIPE_OK;
    if (status == FP8PIPE_OK || launched > 0)
        return status;
    /* cuBLASLt may know better, or say more. */
    replay_table_refuse(stream->replays, place);
    return FP8PIPE_OK;
}

/* ---- Recording ---------------------------------------------------------------------------- */

bool replay_begin(struct cuda_stream *stream, struct replay_place *place, cudaStream_t *capture)
{
    const bool begun = capture_begin(&stream->capture);

    *capture = stream->capture;
    if (!begun)
        replay_table_refuse(stream->replays, place);
    return begun;
}

static cudaError_t graph_edges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to,
                               size_t *count)
{
#if CUDART_VERSION >= 13000
    return cudaGraphGetEdges(graph, from, to, NULL, count);
#else
    return cudaGraphGetEdges(graph, from, to, count);
#endif
}

/* Puts the nodes into the order of their chain. False: they are no chain, or more than a plain one
 * (edges of programmatic launches). */
static bool chain_order(cudaGraph_t graph, cudaGraphNode_t nodes[], size_t count)
{
    cudaGraphNode_t from[REPLAY_STEPS_MAX], to[REPLAY_STEPS_MAX];
    size_t edges = REPLAY_STEPS_MAX, found = 1;
    cudaError_t error;

    if (count == 1)
        return true;
    error = graph_edges(graph, from, to, &edges);
    cuda_forget(error);
    if (error != cudaSuccess || edges != count - 1)
        return false;
    /* The first is where no edge leads to. */
    for (size_t i = 0; i < count; i++) {
        bool first = true;

        for (size_t j = 0; j < edges; j++)
            first = first && to[j] != nodes[i];
        if (first) {
            nodes[0] = nodes[i];
            break;
        }
    }
    while (found < count) {
        size_t next = 0;

        while (next < edges && from[next] != nodes[found - 1])
            next++;
        if (next == edges)
            return false;
        nodes[found++] = to[next];
    }
    return true;
}

/* What a launch may be given besides its grid; of others cuBLASLt's kernels have the default. */
static void attributes_take(const struct cuda_driver *driver, CUgraphNode node,
                            struct replay_step *step)
{
    static const CUlaunchAttributeID known[] = {
        CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
        CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
    };
    static const CUlaunchAttributeValue none;

    _Static_assert(sizeof(known) / sizeof(known[0]) == REPLAY_ATTRIBUTES_MAX, "all fit");
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        CUlaunchAttribute *attribute = &step->attributes[step->config.numAttrs];

        memset(&attribute->value, 0, sizeof(attribute->value));
        if (driver->node_attribute(node, known[i], &attribute->value) != CUDA_SUCCESS ||
            memcmp(&attribute->value, &none, sizeof(none)) == 0)
            continue;
        attribute->id = known[i];
        step->config.numAttrs++;
    }
}

/* False: it sets other bytes than zeros, or more than one row of them. */
static bool zeros_take(cudaGraphNode_t node, struct replay_step *step)
{
    struct cudaMemsetParams params;
    cudaError_t error = cudaGraphMemsetNodeGetParams(node, &params);

    cuda_forget(error);
    if (error != cudaSuccess || params.value != 0 || params.height > 1)
        return false;
    step->zeros = params.dst;
    step->zeros_bytes = params.elementSize * params.width;
    return true;
}

/* False: the driver does not tell of it. */
static bool kernel_take(const struct cuda_driver *driver, cudaGraphNode_t node, cudaStream_t native,
                        struct replay_step *step)
{
    CUDA_KERNEL_NODE_PARAMS params;

    memset(&params, 0, sizeof(params));
    if (driver->node_params(node, &params) != CUDA_SUCCESS)
        return false;
    /* A CUkernel stands for its function in the current context. */
    step->function = params.func != NULL ? params.func : (CUfunction)params.kern;
    step->params = params.kernelParams;
    step->extra = params.extra;
    step->config = (CUlaunchConfig){
        .gridDimX = params.gridDimX,
        .gridDimY = params.gridDimY,
        .gridDimZ = params.gridDimZ,
        .blockDimX = params.blockDimX,
        .blockDimY = params.blockDimY,
        .blockDimZ = params.blockDimZ,
        .sharedMemBytes = params.sharedMemBytes,
        .hStream = native,
        .attrs = step->attributes,
    };
    attributes_take(driver, node, step);
    return step->function != NULL;
}

/* False: a node of another kind. */
static bool step_take(const struct cuda_driver *driver, cudaGraphNode_t node, cudaStream_t native,
                      struct replay_step *step)
{
    enum cudaGraphNodeType type;
    cudaError_t error = cudaGraphNodeGetType(node, &type);

    cuda_forget(error);
    if (error == cudaSuccess && type == cudaGraphNodeTypeKernel)
        return kernel_take(driver, node, native, step);
    return error == cudaSuccess && type == cudaGraphNodeTypeMemset && zeros_take(node, step);
}

/* The amax is 0 already: cuBLASLt does not know that. */
static bool sets_amax(const struct replay *replay, const struct replay_key *key)
{
    const struct replay_step *step = &replay->steps[0];

    return replay->count > 1 && step->function == NULL && step->zeros == key->d_amax &&
           step->zeros_bytes == sizeof(uint32_t);
}

/* Takes the graph, also when it fails. */
static struct replay *replay_make(const struct cuda_backend *backend, cudaStream_t native,
                                  const struct replay_key *key, cudaGraph_t graph)
{
    struct replay *replay = calloc(1, sizeof(*replay));
    cudaGraphNode_t nodes[REPLAY_STEPS_MAX];
    size_t count = 0;
    cudaError_t error;
    bool whole;

    if (replay == NULL)
        goto destroy_graph;
    replay->graph = graph;
    error = cudaGraphGetNodes(graph, NULL, &count);
    if (error == cudaSuccess && count >= 1 && count <= REPLAY_STEPS_MAX)
        error = cudaGraphGetNodes(graph, nodes, &count);
    else
        count = 0;
    cuda_forget(error);
    whole = error == cudaSuccess && count > 0 && chain_order(graph, nodes, count);
    for (size_t i = 0; whole && i < count; i++)
        whole = step_take(&backend->driver, nodes[i], native, &replay->steps[i]);
    if (whole) {
        replay->count = count;
        replay->first = sets_amax(replay, key) ? 1 : 0;
        return replay;
    }
    free(replay);
destroy_graph:
    cuda_forget(cudaGraphDestroy(graph));
    return NULL;
}

bool replay_end(struct cuda_backend *backend, struct cuda_stream *stream,
                struct replay_place *place, bool made)
{
    cudaGraph_t graph = capture_end(stream->capture);
    struct replay *replay = NULL;

    if (graph != NULL && made)
        replay = replay_make(backend, stream->native, &place->key, graph);
    else if (graph != NULL)
        cuda_forget(cudaGraphDestroy(graph));
    if (replay == NULL) {
        replay_table_refuse(stream->replays, place);
        return false;
    }
    replay_table_keep(stream->replays, place, replay);
    return true;
}

void replays_free(struct cuda_stream *stream)
{
    replay_table_destroy(stream->replays);
    if (stream->capture != NULL)
        cuda_forget(cudaStreamDestroy(stream->capture));
}
