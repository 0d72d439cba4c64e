/*
 * Ranks that send each other functions, in the style of YGM: words are counted where their hash says, and a letter goes round
 * by a handler that sends itself on.
 *
 *   c++ -std=c++17 async_words.cpp $(pkg-config --cflags --libs trihop) -o async_words
 *   trihop run -n 4 --nodes 2 -- ./async_words [WORDS]
 */
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <trihop/containers.hpp>

namespace ygm = trihop::async;

/* Goes to the next rank until it has been everywhere. */
struct Letter {
    void operator()(ygm::comm &world, ygm::pointer<std::uint64_t> passed, const std::string &text, int hops) const {
        ++*passed;
        if (hops > 1)
            world.async((world.rank() + 1) % world.size(), Letter{}, passed, text + ".", hops - 1);
    }
};

int main(int argc, char **argv) {
    const std::uint64_t words = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100000;
    ygm::comm world(&argc, &argv);
    const auto size = static_cast<std::uint64_t>(world.size());
    const char *const names[] = {"shared", "memory", "inside", "fabric", "between", "three", "hops"};

    ygm::container::counting_set<std::string> counts(world);
    for (std::uint64_t at = 0; at < words; at++)
        counts.async_insert(names[at % 7 * (at % 7) % 7]); /* squares modulo 7 are 0, 1, 2 and 4 */
    for (const auto &[word, times] : counts.topk(4))
        world.cout0(word, ": ", times);

    ygm::distributed<std::uint64_t> passed(world, 0u);
    world.async(world.rank(), Letter{}, passed, "letter", world.size());
    world.barrier();
    if (counts.count_all() != words * size || counts.size() != (words < 4 ? words : 4) || *passed != size) {
        std::cerr << "rank " << world.rank() << ": something was lost\n";
        return EXIT_FAILURE;
    }
}
