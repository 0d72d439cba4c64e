/* Channels of trihop.hpp: `typed inline|threaded`. Says "ok" on rank 0. */
#include <chrono>
#include <cstring>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <trihop.hpp>

namespace {

void expect(bool is_so, const char *what) {
    if (!is_so)
        throw std::runtime_error(std::string("not so: ") + what);
}

#define EXPECT(what) expect(what, #what)

/* A port of what rank 0 has. */
trihop::Channel shared(const trihop::Job &job, const trihop::Channels &channels, const trihop::Channel *mine) {
    char text[TRIHOP_CHANNEL_DESCRIPTOR_CHARS] = "";
    if (mine != nullptr)
        std::strcpy(text, mine->descriptor().c_str());
    trihop::check(trihop_broadcast(job.get(), 0, text, sizeof text));
    return channels.attach(text);
}

void run(const trihop::Job &job, const trihop::Channels &channels) {
    using namespace std::chrono_literals;
    using trihop::Timeout;
    const bool is_first = job.rank() == 0;
    const auto made = [&](auto make) {
        std::optional<trihop::Channel> mine;
        if (is_first)
            mine.emplace(make());
        return shared(job, channels, mine ? &*mine : nullptr);
    };
    const trihop::Channel lock = made([&] { return channels.semaphore(1, 1); });
    const trihop::Channel gate = made([&] { return channels.barrier(job.size()); });
    const trihop::Channel inbox = made([&] { return channels.create(); });
    EXPECT(lock.kind() == TRIHOP_CHANNEL_SEMAPHORE && gate.kind() == TRIHOP_CHANNEL_BARRIER);

    while (!lock.acquire(50us)) {
    }
    EXPECT(!lock.acquire(Timeout::once()));
    EXPECT(!lock.acquire(1ns));
    lock.release();
    EXPECT(gate.arrive().value() < job.size());
    EXPECT(lock.poll(TRIHOP_POLL_VALUE) == 1U);
    job.barrier();
    try {
        lock.release();
        EXPECT(false);
    } catch (const trihop::Error &error) {
        EXPECT(error.status() == TRIHOP_ERR_MISUSE);
    }

    EXPECT(inbox.send(job.rank(), "news", 4));
    if (is_first) {
        EXPECT(inbox.event() >= 0 && inbox.event() == inbox.event());
        EXPECT(inbox.peek()->size() == 4);
        for (std::uint32_t i = 0; i < job.size(); i++) {
            trihop::Received got = inbox.receive().value();
            const trihop::Received moved = std::move(got);
            EXPECT(got.data() == nullptr && moved.size() == 4 && std::memcmp(moved.data(), "news", 4) == 0);
            EXPECT(moved.kind() == moved.source());
        }
        trihop::Received field = inbox.buffer(100000);
        EXPECT(field.size() == 100000);
        std::memset(field.data(), 7, field.size());
        EXPECT(inbox.send_buffer(1, field) && field.size() == 0);
        trihop::Received forward = inbox.receive().value();
        EXPECT(inbox.start_send_buffer(2, forward).value().wait() && forward.size() == 0);
        const trihop::Received last = inbox.receive().value();
        EXPECT(last.kind() == 2 && last.size() == 100000 && static_cast<const char *>(last.data())[99999] == 7);
        EXPECT(!inbox.receive(Timeout::once()) && !inbox.peek(1us) && !inbox.pop(Timeout::once()));
        EXPECT(inbox.failures() == 0);

        trihop::Asked get = inbox.start_receive().value(), polled = inbox.start_poll(TRIHOP_POLL_SIZE).value();
        EXPECT(!get.test() && get.event() == get.event());
        EXPECT(inbox.start_send(7, "late", 4).value().wait());
        EXPECT(polled.value() == 0U);
        EXPECT(get.received().value().kind() == 7);
        trihop::Asked late = inbox.start_receive(1us).value();
        while (!late.test()) {
        }
        EXPECT(!late.wait() && !late.received());
        try {
            get.received();
            EXPECT(false);
        } catch (const trihop::Error &error) {
            EXPECT(error.status() == TRIHOP_ERR_MISUSE);
        }
    }
    job.barrier();
}

/* What a channel says of itself, and messages that come into memory of the program's. */
void fill(const trihop::Job &job, const trihop::Channels &channels) {
    using namespace std::chrono_literals;
    trihop_channel_limits_t limits{};
    limits.size = sizeof limits;
    limits.messages = 5;
    std::optional<trihop::Channel> mine;
    if (job.rank() == 0)
        mine.emplace(channels.create(&limits));
    const trihop::Channel inbox = shared(job, channels, mine ? &*mine : nullptr);
    EXPECT(inbox.owner() == 0 && inbox.limits().messages == 5 && inbox.limits().ports == 1024);
    if (job.rank() == 0)
        EXPECT(inbox.send(7, "news", 4));
    job.barrier();
    if (job.rank() == job.size() - 1) {
        char bytes[5] = "....";
        try {
            inbox.receive_into(bytes, 3);
            EXPECT(false);
        } catch (const trihop::Error &error) {
            EXPECT(error.status() == TRIHOP_ERR_BUFFER_TOO_SMALL);
        }
        const trihop_filled_t filled = inbox.receive_into(bytes, sizeof bytes).value();
        EXPECT(filled.length == 4 && filled.kind == 7 && filled.source == 0 && std::strcmp(bytes, "news") == 0);
        EXPECT(!inbox.receive_into(bytes, sizeof bytes, 1us));
        /* One that found no room, one that did, and one that found nothing, with its reminder. */
        EXPECT(job.size() == 1 ? channels.stats().sent == 0 : channels.stats().sent >= 3);
    }
    job.barrier();
}

} // namespace

int main(int argc, char **argv) try {
    const bool is_inline = argc > 1 && std::string(argv[1]) == "inline";
    const trihop::Seat seat = is_inline ? trihop::Seat::Inline : trihop::Seat::Threaded;
    std::optional<trihop::Kept> kept;
    std::string name;
    {
        const trihop::Job job(seat);
        trihop::Channels channels(job, "typed");
        run(job, channels);
        fill(job, trihop::Channels(job, "bounded", trihop::ChannelsOptions(1)));
        const trihop::Channel mine = channels.create();
        name = mine.descriptor();
        EXPECT(mine.send(7, "kept", 4));
        kept = channels.keep();
    }
    const trihop::Job job(seat);
    {
        trihop::ChannelsOptions options(0);
        options.kept = &*kept;
        const trihop::Channels channels(job, "typed", options);
        EXPECT(channels.attach(name).receive()->kind() == 7);
    }
    if (job.rank() == 0)
        std::cout << "ok" << std::endl;
    return 0;
} catch (const std::exception &error) {
    std::cerr << error.what() << std::endl;
    return 1;
}
