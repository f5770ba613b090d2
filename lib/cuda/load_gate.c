#include "load_gate.h"

#include <ck_pr.h>

void load_gate_call(struct load_gate *gate, int64_t now_ns)
{
    ck_pr_store_64((uint64_t *)&gate->called_ns, (uint64_t)now_ns);
}

bool load_gate_is_open(const struct load_gate *gate, int64_t now_ns, int64_t since_ns)
{
    const int64_t called_ns = (int64_t)ck_pr_load_64((const uint64_t *)&gate->called_ns);
    const int64_t waits_ns = gate->loaded_ns > since_ns ? gate->loaded_ns : since_ns;
    int64_t quiet_ns = LOAD_GATE_QUIET_NS;

    if (now_ns - waits_ns >= LOAD_GATE_LATEST_NS)
        return true;
    /* A pause in which something was loaded has to last twice as long before it is used again. */
    if (gate->loaded_ns > called_ns)
        quiet_ns = 2 * (gate->loaded_ns - called_ns);
    if (quiet_ns > LOAD_GATE_LONG_NS)
        quiet_ns = LOAD_GATE_LONG_NS;
    return now_ns - called_ns >= quiet_ns;
}

void load_gate_loaded(struct load_gate *gate, int64_t from_ns, int64_t now_ns)
{
    if (now_ns - from_ns >= LOAD_GATE_LOAD_NS)
        gate->loaded_ns = now_ns;
}
