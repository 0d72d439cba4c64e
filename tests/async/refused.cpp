/* What the compiler refuses, with words of ours, where REFUSED is defined. */
#include <string>
#include <trihop/containers.hpp>

struct Unknown {
    std::string name;
};

int main() {
    trihop::async::comm world;
    trihop::async::container::map<int, int> map(world);
    int here = 1;
#ifdef REFUSED
    world.async(0, [here] { (void)here; });
    world.async(0, [](int *) {}, &here);
    world.async(0, [](const Unknown &) {}, Unknown{});
    world.async(0, [](const std::string &) {}, here);
    void (*function)() = [] {};
    world.async(0, function);
    map.async_visit(1, [&](const int &, int &value) { value = here; });
#endif
    world.async(0, [](int value) { (void)value; }, here);
}
