// A histogram whose table is spread over all ranks: each update is an 8-byte item for the rank that owns its place.
//
//   c++ -std=c++17 histogram.cpp $(pkg-config --cflags --libs trihop) -o histogram
//   trihop run -n 4 --nodes 2 -- ./histogram

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <trihop.h>

namespace {

void check(trihop_status_t status, const char *what) {
    if (status != TRIHOP_OK)
        throw std::runtime_error(std::string(what) + ": " + trihop_last_error());
}

constexpr std::uint64_t places_per_rank = 10'000;

struct Table {
    std::vector<std::uint64_t> counts = std::vector<std::uint64_t>(places_per_rank);
    std::uint64_t wrong = 0;
};

// Runs on the delivery thread of the stream; no exception may leave it.
void update(void *context, const trihop_message_t *message) noexcept {
    auto &table = *static_cast<Table *>(context);
    const auto *places = static_cast<const std::uint64_t *>(message->bytes);
    for (std::size_t i = 0; i < message->count; i++) {
        if (places[i] < places_per_rank)
            table.counts[places[i]]++;
        else
            table.wrong++;
    }
}

// The table outlives the stream: after a failure the delivery thread may still write to it.
bool histogram(trihop_job_t *job, std::uint64_t updates, Table &table) {
    const std::uint32_t size = trihop_size(job);
    trihop_stream_t *items = nullptr;
    check(trihop_stream_open(job, "histogram", sizeof(std::uint64_t), nullptr, update, &table, &items),
          "trihop_stream_open");

    // The same seeds everywhere, so that every rank knows what it ought to have been sent.
    std::vector<std::uint64_t> expected(places_per_rank);
    std::vector<std::uint32_t> targets;
    std::vector<std::uint64_t> places;
    for (std::uint32_t rank = 0; rank < size; rank++) {
        std::mt19937_64 random(rank);
        for (std::uint64_t i = 0; i < updates; i++) {
            const auto index = random() % (places_per_rank * size);
            const auto owner = static_cast<std::uint32_t>(index / places_per_rank);
            if (owner == trihop_rank(job))
                expected[index % places_per_rank]++;
            if (rank == trihop_rank(job)) {
                targets.push_back(owner);
                places.push_back(index % places_per_rank);
            }
        }
    }
    check(trihop_stream_push_many(items, targets.data(), places.data(), targets.size(), nullptr),
          "trihop_stream_push_many");
    check(trihop_stream_fence(items), "trihop_stream_fence");

    std::uint64_t sums[2] = {0, table.wrong};
    for (std::uint64_t place = 0; place < places_per_rank; place++) {
        sums[0] += table.counts[place];
        sums[1] += table.counts[place] != expected[place];
    }
    check(trihop_allreduce(job, TRIHOP_SUM, sums, 2), "trihop_allreduce");
    if (trihop_rank(job) == 0)
        std::printf("%llu updates on %u ranks, %llu places wrong\n", static_cast<unsigned long long>(sums[0]), size,
                    static_cast<unsigned long long>(sums[1]));
    check(trihop_stream_close(items), "trihop_stream_close");
    return sums[0] == updates * size && sums[1] == 0;
}

} // namespace

int main(int argc, char **argv) {
    trihop_job_t *job = nullptr;
    static Table table;
    try {
        check(trihop_init(TRIHOP_THREADED, nullptr, &job), "trihop_init");
        const bool right = histogram(job, argc > 1 ? std::stoull(argv[1]) : 100'000, table);
        check(trihop_finalize(job), "trihop_finalize");
        return right ? EXIT_SUCCESS : EXIT_FAILURE;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "histogram: %s\n", error.what());
        if (job != nullptr)
            trihop_abort(job, EXIT_FAILURE, error.what());
        return EXIT_FAILURE;
    }
}
