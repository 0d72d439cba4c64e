/* Mini-ranks by trihop.hpp: each thread has a Job of its own. Says "ok" on rank 0. */
#include <atomic>
#include <cstdint>
#include <iostream>
#include <thread>
#include <vector>

#include <trihop.hpp>

int main() {
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
