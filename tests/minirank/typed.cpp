/* Mini-ranks by trihop.hpp: each thread has a Job of its own. Says "ok" on rank 0. */
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <thread>
#include <vector>

#include <trihop.hpp>

/* How often an allgather of one process alone was called, by the thread that made the job and by others. */
struct Calls {
    std::thread::id maker = std::this_thread::get_id();
    std::atomic<unsigned> by_maker{0}, by_others{0};
};

static std::int32_t alone(void *context, const void *mine, std::size_t bytes, void *all) {
    Calls *calls = static_cast<Calls *>(context);
    (std::this_thread::get_id() == calls->maker ? calls->by_maker : calls->by_others)++;
    std::memcpy(all, mine, bytes);
    return 0;
}

static_assert(sizeof(trihop::MiniRanks(1, {})) > 0, "these are options");

/* Processes that know each other: a job of one, as process and as two mini-ranks. */
static bool known() {
    Calls of_job, of_miniranks, of_none;
    trihop::Job(trihop::Known(0, 1, 7, alone, &of_job), trihop::Seat::Inline).finish();
    unsigned refused = 0;
    const auto refuses = [&refused, &of_none](std::uint32_t ranks, std::uint32_t rank) {
        try {
            trihop::MiniRanks impossible(ranks, trihop::Known(rank, 1, 7, alone, &of_none));
        } catch (const trihop::Error &) {
            refused++;
        }
    };
    refuses(2, 1);
    refuses(2000, 0); // before others could wait in the allgather

    trihop::Options options;
    trihop::MiniRanks miniranks(2, trihop::Known(0, 1, 7, alone, &of_miniranks), options);
    const unsigned at_first = of_miniranks.by_others;
    std::atomic<unsigned> right{0}, joined{0};
    std::vector<std::thread> threads;
    for (std::uint32_t index = 0; index < 2; index++)
        threads.emplace_back([&miniranks, &of_miniranks, &right, &joined, index] {
            trihop::Job job(miniranks, index);
            joined = of_miniranks.by_others.load(); // neither ends before both have come to the barrier
            right += job.size() == 2 && job.rank() == index;
            job.barrier();
            job.finish();
        });
    for (std::thread &thread : threads)
        thread.join();
    miniranks.finish();
    const unsigned at_last = of_miniranks.by_others;
    return refused == 2 && of_none.by_maker == 0 && of_none.by_others == 0 && right == 2 && of_job.by_maker > 0 &&
           of_job.by_others == 0 && of_miniranks.by_maker > 0 && at_first == 0 && joined > 0 && at_last > joined;
}

int main() {
    if (!known())
        return 1;
    trihop::MiniRanks miniranks;
    std::atomic<unsigned> right{0};
    std::vector<std::thread> threads;

    for (std::uint32_t index = 0; index < miniranks.count(); index++)
        threads.emplace_back([&miniranks, &right, index] {
            trihop::Job job(miniranks, index);
            bool stays = false;
            try {
                miniranks.finish();
            } catch (const trihop::Error &error) {
                stays = error.status() == TRIHOP_ERR_MISUSE && miniranks.count() > 0;
            }
            std::uint64_t heard = 0;
            trihop::Stream<std::uint64_t> items(job, "items", [&heard](std::uint64_t item) { heard += item; });
            for (std::uint32_t rank = 0; rank < job.size(); rank++)
                items.push(rank, job.rank() + 1);
            items.fence();
            job.barrier_of_process();
            bool refused = false;
            try {
                trihop::Job again(miniranks, index);
            } catch (const trihop::Error &error) {
                refused = error.status() == TRIHOP_ERR_MISUSE;
            }
            const std::uint64_t size = job.size();
            if (job.index() == index && refused && stays && heard == size * (size + 1) / 2)
                right++;
            items.close();
            if (job.rank() == 0)
                std::cout << "ok" << std::endl;
        });
    for (std::thread &thread : threads)
        thread.join();
    const bool all = right == miniranks.count();
    miniranks.finish();
    return all ? 0 : 1;
}
