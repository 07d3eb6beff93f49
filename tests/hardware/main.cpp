// Runs bench.v in Verilator. The option --main would give each hierarchical block a function of that name.
#include "Vbench.h"
#include "verilated.h"

int main(int argc, char** argv) {
    VerilatedContext context;
    context.commandArgs(argc, argv);
    Vbench bench{&context};
    while (!context.gotFinish()) {
        bench.eval();
        if (!bench.eventsPending()) break;
        context.time(bench.nextTimeSlot());
    }
    bench.final();
}
