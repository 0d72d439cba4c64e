/* Mini-ranks by trihop.hpp: each thread has a Job of its own. Says "ok" on rank 0. */
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <thread>
#include <vector>

#include <trihop.hpp>

/* Of one process alone. */
static std::int32_t alone(void *context, const void *mine, std::size_t bytes, void *all) {
    ++*static_cast<std::atomic<unsigned> *>(context);
    std::memcpy(all, mine, bytes);
    return 0;
}

/* Processes that know each other: a job of one, as process and as two mini-ranks. */
static bool known() {
    std::atomic<unsigned> gathered{0}, right{0};
    trihop::Known self{0, 1, 7, alone, &gathered};
    trihop::Job(self, trihop::Seat::Inline).finish();
    const unsigned by_job = gathered;
    bool refused = false;
    try {
        trihop::MiniRanks impossible(2, trihop::Known{1, 1, 7, alone, &gathered});
    } catch (const trihop::Error &) {
        refused = true;
    }
    trihop::Options options;
    trihop::MiniRanks miniranks(2, self, &options);
    std::vector<std::thread> threads;
    for (std::uint32_t index = 0; index < 2; index++)
        threads.emplace_back([&miniranks, &right, index] {
            trihop::Job job(miniranks, index);
            right += job.size() == 2 && job.rank() == index;
            job.finish();
        });
    for (std::thread &thread : threads)
        thread.join();
    miniranks.finish();
    return refused && right == 2 && by_job > 0 && gathered > by_job;
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
