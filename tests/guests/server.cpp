/* A job that serves guests, and is one of its own: `server NAME`. Says "ok". */
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>

#include <trihop.hpp>

namespace {

void expect(bool is_so, const char *what) {
    if (!is_so)
        throw std::runtime_error(std::string("not so: ") + what);
}

#define EXPECT(what) expect(what, #what)

void run(const trihop::Job &job, const char *name) {
    const trihop::Channels channels(job, "served");
    trihop::Guests guests(channels, name);
    try {
        const trihop::Guests second(channels, name);
        EXPECT(false);
    } catch (const trihop::Error &error) {
        EXPECT(error.status() == TRIHOP_ERR_SYSTEM);
    }
    const trihop::Channel of_rank = channels.create();
    std::thread other([&] {
        const trihop::Guest guest(name);
        EXPECT(guest.rank() == 0 && guest.size() == 1);
        const trihop::Channel tasks = guest.attach(of_rank.descriptor());
        const trihop::Channel back = guest.create(trihop::Lifetime::Server);
        const std::string there = back.descriptor();
        EXPECT(tasks.send(5, there.data(), there.size()));
        trihop::Asked next = back.start_receive().value();
        next.wait();
        EXPECT(next.received().value().kind() == 6 && back.event() >= 0);
        const trihop::Channel lock = guest.semaphore(1, 1);
        EXPECT(lock.acquire() && !lock.acquire(trihop::Timeout::once()));
        const trihop::Channel gate = guest.barrier(1);
        EXPECT(gate.arrive() == 0U);
    });
    const trihop::Received got = of_rank.receive().value();
    const std::string there(static_cast<const char *>(got.data()), got.size());
    EXPECT(got.kind() == 5);
    EXPECT(channels.attach(there).send(6, "", 0));
    other.join();
}

} // namespace

int main(int, char **words) {
    try {
        const trihop::Job job;
        run(job, words[1]);
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    std::cout << "ok\n";
    return 0;
}
