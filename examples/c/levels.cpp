// A breadth-first search, level by level: in each step every rank sends the neighbours of its newest vertices to their ranks,
// and a round ends the step.
//
//   c++ -std=c++17 levels.cpp $(pkg-config --cflags --libs trihop) -o levels
//   trihop run -n 4 --nodes 2 -- ./levels

#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include <trihop.hpp>

namespace {

constexpr std::uint64_t vertices = 200'000;
constexpr std::uint32_t unseen = UINT32_MAX;

// The graph: each vertex has edges to three others.
template <class Visit> void each_neighbour(std::uint64_t vertex, Visit visit) {
    visit((vertex * 3 + 1) % vertices);
    visit((vertex * 5 + 7) % vertices);
    visit(vertex ^ 1);
}

// The same without any messages.
std::vector<std::uint32_t> search_alone() {
    std::vector<std::uint32_t> level(vertices, unseen);
    std::vector<std::uint64_t> frontier{0}, next;
    level[0] = 0;
    for (std::uint32_t now = 1; !frontier.empty(); now++, frontier.swap(next), next.clear())
        for (std::uint64_t vertex : frontier)
            each_neighbour(vertex, [&](std::uint64_t neighbour) {
                if (level[neighbour] == unseen) {
                    level[neighbour] = now;
                    next.push_back(neighbour);
                }
            });
    return level;
}

} // namespace

int main() {
    try {
        trihop::Job job(trihop::Seat::Inline);
        const std::uint64_t size = job.size(), rank = job.rank();
        std::vector<std::uint32_t> level((vertices + size - 1 - rank) / size, unseen); // of vertex rank + i * size
        std::vector<std::uint64_t> frontier, next;
        std::uint32_t now = 1;

        trihop::Stream<std::uint64_t> visits(job, "visits", [&](std::uint64_t vertex) {
            auto &known = level[vertex / size];
            if (known == unseen) {
                known = now;
                next.push_back(vertex);
            }
        });
        if (rank == 0) {
            level[0] = 0;
            frontier.push_back(0);
        }
        while (job.allreduce<std::uint64_t>(frontier.size()) > 0) {
            for (std::uint64_t vertex : frontier)
                each_neighbour(vertex, [&](std::uint64_t neighbour) {
                    visits.push(static_cast<std::uint32_t>(neighbour % size), neighbour);
                });
            visits.round();
            // Others may be in the next step already, and what they send may be handled in this rank's next call, whichever
            // that is: so all is ready for it before.
            now++;
            frontier.swap(next);
            next.clear();
        }

        const auto expected = search_alone();
        std::uint64_t wrong = 0;
        for (std::uint64_t i = 0; i < level.size(); i++)
            wrong += level[i] != expected[rank + i * size];
        wrong = job.allreduce(wrong);
        if (rank == 0)
            std::printf("%u levels of %llu vertices on %u ranks, %llu wrong\n", now - 1,
                        static_cast<unsigned long long>(vertices), job.size(), static_cast<unsigned long long>(wrong));
        return wrong > 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "levels: %s\n", error.what());
        return 1;
    }
}
