/* Another program than async.cpp: it sends other functions. */
#include <trihop/async.hpp>

int main() {
    trihop::async::comm world;
    world.async(0, [] {});
    world.barrier();
}
