/* What the compiler refuses, with words of ours: REFUSED says which. */
#include <string>
#include <trihop/containers.hpp>

struct Unknown {
    std::string name;
};

int main() {
    trihop::async::comm world;
    int here = 1;
#if REFUSED == 1
    world.async(0, [here] { (void)here; });
#elif REFUSED == 2
    world.async(0, [](int *) {}, &here);
#elif REFUSED == 3
    world.async(0, [](const Unknown &) {}, Unknown{});
#elif REFUSED == 4
    world.async(0, [](const std::string &) {}, here);
#elif REFUSED == 5
    void (*function)() = [] {};
    world.async(0, function);
#elif REFUSED == 6
    trihop::async::container::map<int, int> map(world);
    map.async_visit(1, [&](const int &, int &value) { value = here; });
#endif
    (void)here;
}
