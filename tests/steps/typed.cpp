/* trihop.hpp as a program uses it: `typed inline|threaded`. Says "ok" on rank 0. */
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <trihop.hpp>

namespace {

void expect(bool is_so, const char *what) {
    if (!is_so)
        throw std::runtime_error(std::string("not so: ") + what);
}

#define EXPECT(what) expect(what, #what)

template <class Call> trihop_status_t refused(Call call) {
    try {
        call();
    } catch (const trihop::Error &error) {
        EXPECT(std::strlen(error.what()) > 0);
        return error.status();
    }
    return TRIHOP_OK;
}

/* A text that does not move where it is secret. */
struct Tale {
    std::string text;
};

} // namespace

template <> struct trihop::Packing<Tale> {
    static void pack(const Tale &tale, Packer &packer) {
        if (tale.text == "secret")
            throw std::invalid_argument(tale.text);
        packer.append(tale.text.size());
        packer.append(tale.text.data(), tale.text.size());
    }

    static Tale unpack(const void *bytes, std::size_t length) {
        const char *letters = static_cast<const char *>(bytes);
        return Tale{std::string(letters + sizeof(std::size_t), length - sizeof(std::size_t))};
    }
};

namespace {

bool packing_fails(const std::function<void()> &call) {
    try {
        call();
    } catch (const std::invalid_argument &) {
        return true;
    }
    return false;
}

struct Edge {
    std::uint32_t from, to;
    double weight;
};

/* Items to handlers of each kind, ended by rounds and fences. */
void handlers(trihop::Job &job) {
    const std::uint32_t size = job.size(), rank = job.rank();
    std::uint64_t edges = 0, answers = 0;
    std::vector<std::uint64_t> sums(23); /* by step: others may be ahead */
    double weight = 0;
    trihop::Stream<std::uint64_t> plain(job, "plain", [&](std::uint64_t item) { sums[item >> 32] += item & 0xffff; });
    trihop::Stream<Edge> typed(job, "typed", [&](const Edge &edge, std::uint32_t source) {
        EXPECT(edge.from == source && edge.to == rank);
        weight += edge.weight;
        edges++;
    });
    bool counts = false;
    trihop::Stream<std::uint64_t> asked(job, "asked", [&](const trihop::Items<std::uint64_t> &items) {
        for (std::uint64_t item : items) {
            if (counts && item % 2 != 0)
                items.done();
            if (item % 2 == 0)
                items.push(items.source(), item + 1);
            else
                answers++;
        }
    });
    for (std::uint64_t step = 0; step < 20; step++) {
        for (std::uint32_t target = 0; target < size; target++) {
            plain.push(target, step << 32 | (step + rank));
            typed.push(target, Edge{rank, target, 0.5});
            asked.push(target, 2 * step);
        }
        plain.round();
        EXPECT(sums[step] == step * size + std::uint64_t{size} * (size - 1) / 2);
        typed.start(trihop::End::Round);
        EXPECT(refused([&] { typed.push(0, Edge{}); }) == TRIHOP_ERR_MISUSE);
        EXPECT(refused([&] { typed.flush(trihop::Queues::Origin); }) == TRIHOP_ERR_MISUSE);
        EXPECT(refused([&] { typed.round(); }) == TRIHOP_ERR_MISUSE);
        EXPECT(refused([&] { job.fence(); }) == TRIHOP_ERR_MISUSE);
        while (!typed.test()) {
        }
        asked.fence();
        EXPECT(answers == (step + 1) * size);
    }
    /* A step in which handlers send, of contributors that all ranks count together. */
    const std::uint64_t before = answers;
    job.barrier();
    counts = true;
    job.barrier();
    asked.begin_step(trihop::Contributors::All, std::uint64_t{4} * size);
    const std::uint32_t targets[2] = {(rank + 1) % size, rank};
    const std::uint64_t questions[2] = {8, 10};
    std::size_t sent = 0;
    asked.extend(targets, questions, 2, &sent);
    EXPECT(sent == 2);
    asked.done(2);
    asked.wait();
    EXPECT(answers == before + 2);
    job.barrier();
    counts = false;
    EXPECT(refused([&] { asked.done(); }) == TRIHOP_ERR_MISUSE);
    EXPECT(edges == 20 * size && std::abs(weight - 10.0 * size) < 1e-9);
    EXPECT(refused([&] { plain.wait(); }) == TRIHOP_ERR_MISUSE);
    EXPECT(refused([&] { plain.push(size, 0); }) == TRIHOP_ERR_RANK);
    plain.broadcast(std::uint64_t{20} << 32 | 7, TRIHOP_TO_OTHERS);
    plain.fence();
    EXPECT(sums[20] == 7 * (size - 1));
    job.fence();
    /* Such a fence in two phases, beside which the program sends and calls collectives. */
    EXPECT(refused([&] { job.test_fence(); }) == TRIHOP_ERR_MISUSE);
    EXPECT(refused([&] { job.wait_fence(); }) == TRIHOP_ERR_MISUSE);
    plain.push((rank + 1) % size, std::uint64_t{21} << 32 | 5);
    job.start_fence();
    EXPECT(refused([&] { job.start_fence(); }) == TRIHOP_ERR_MISUSE);
    EXPECT(refused([&] { job.fence(); }) == TRIHOP_ERR_MISUSE);
    EXPECT(refused([&] { plain.round(); }) == TRIHOP_ERR_MISUSE);
    while (!plain.try_broadcast(std::uint64_t{22} << 32 | 3))
        job.poll();
    job.barrier();
    while (!job.test_fence()) {
    }
    EXPECT(sums[21] == 5);
    job.start_fence();
    job.wait_fence();
    EXPECT(sums[22] == 3 * size);
    auto moved = std::move(plain);
    moved.push(rank, 1);
    moved.fence();
}

/* Items longer than any frame of a queue. */
void long_items(trihop::Job &job) {
    struct Page {
        std::uint64_t number;
        unsigned char bytes[100'000];
    };
    std::uint64_t pages = 0, wrong = 0;
    trihop::Stream<Page> stream(job, "pages", [&](const Page &page, std::uint32_t source) {
        pages++;
        wrong += page.number != source || page.bytes[0] != source || page.bytes[99'999] != source;
    });
    auto page = std::make_unique<Page>();
    page->number = job.rank();
    std::memset(page->bytes, static_cast<int>(job.rank()), sizeof page->bytes);
    for (std::uint32_t target = 0; target < job.size(); target++)
        stream.push(target, *page);
    stream.broadcast(*page);
    stream.fence();
    EXPECT(pages == 2 * std::uint64_t{job.size()} && wrong == 0);
}

void records(trihop::Job &job) {
    std::size_t bytes = 0, echoes = 0;
    const std::string text(100'000, 'x');
    trihop::Shuffle shuffle(job, "records", [&](const trihop::Record &record) {
        if (record.kind() == 1) {
            bytes += record.size();
            record.send(record.source(), 2, record.data(), 3);
        } else {
            echoes += record.size();
        }
    });
    shuffle.send((job.rank() + 1) % job.size(), 1, text.data(), text.size());
    shuffle.fence();
    EXPECT(bytes == text.size() && echoes == 3);
}

/* What a handler throws is thrown by the fence. */
void exceptions(trihop::Job &job) {
    struct Thrown {};
    bool was_thrown = false;
    trihop::Stream<int> fragile(job, "fragile", [](int item) {
        if (item == 3)
            throw Thrown{};
    });
    for (int item = 0; item < 10; item++)
        fragile.push(job.rank(), item);
    try {
        fragile.fence();
    } catch (const Thrown &) {
        was_thrown = true;
    }
    if (!was_thrown) {
        try {
            fragile.fence();
        } catch (const Thrown &) {
            was_thrown = true;
        }
    } else {
        fragile.fence();
    }
    EXPECT(was_thrown);
}

/* Steps that begin the next one when they are over; what such a call throws is thrown by the next end. */
void chains(trihop::Job &job, bool is_inline) {
    struct Thrown {};
    const std::uint32_t size = job.size();
    /* The handler and the calls are one after the other. */
    std::uint64_t heard = 0, starts = 0;
    std::atomic<std::uint64_t> ends{0};
    trihop::Stream<int> stream(job, "chain", [&](int) { heard++; });
    std::function<void()> begin = [&] {
        trihop::StepOptions options;
        options.priority = static_cast<int>(starts);
        options.at_start = [&] {
            starts++;
            for (std::uint32_t target = 0; target < size; target++)
                stream.push(target, 1);
            stream.done();
        };
        options.at_end = [&] {
            EXPECT(heard >= starts * size);
            EXPECT(refused([&] { stream.wait(); }) == TRIHOP_ERR_NESTED);
            if (starts < 100)
                begin();
            ends++;
        };
        stream.begin_step(trihop::Contributors::Local, 1, options);
    };
    begin();
    while (ends < 100) {
        /* With threads nobody need ask. */
        if (is_inline)
            stream.wait();
        else
            std::this_thread::yield();
    }
    job.barrier();
    EXPECT(heard == 100 * size);
    EXPECT(refused([&] { stream.begin_step(trihop::Contributors::Local, 1, {256, {}, {}}); }) == TRIHOP_ERR_INVALID_ARGUMENT);
    bool was_thrown = false;
    stream.begin_step(trihop::Contributors::Local, 0, {-1, {}, [&] { ends++, throw Thrown{}; }});
    try {
        stream.wait();
    } catch (const Thrown &) {
        was_thrown = true;
    }
    while (ends == 100)
        std::this_thread::yield(); /* with threads it may come after the wait */
    try {
        stream.fence();
    } catch (const Thrown &) {
        was_thrown = true;
    }
    EXPECT(was_thrown);
    if (is_inline) {
        stream.own_at_once();
        stream.push(job.rank(), 1);
        EXPECT(heard == 100 * size + 1);
    } else {
        EXPECT(refused([&] { stream.own_at_once(); }) == TRIHOP_ERR_CONFIG);
    }
}

/* Rounds and fences that start the next one when they are over. */
void rounds(trihop::Job &job, bool is_inline) {
    struct Thrown {};
    constexpr std::uint64_t all = 24;
    const std::uint32_t size = job.size();
    std::vector<std::uint64_t> heard(all + 2);
    std::uint64_t starts = 0, early = 0;
    std::atomic<std::uint64_t> ends{0};
    const auto end_of = [](std::uint64_t step) { return step % 3 == 2 ? trihop::End::Fence : trihop::End::Round; };
    trihop::Stream<std::uint64_t> stream(job, "rounds", [&](std::uint64_t step) {
        early += step > 0 && step < all && end_of(step - 1) == trihop::End::Round && step != ends;
        heard[step]++;
    });
    std::function<void()> start = [&] {
        trihop::StepOptions options;
        options.at_start = [&] {
            for (std::uint32_t target = 0; target < size; target++)
                stream.push(target, starts);
            starts++;
        };
        options.at_end = [&] {
            EXPECT(heard[ends] == size);
            ends++;
            if (starts < all)
                start();
        };
        stream.start(end_of(starts), options);
    };
    start();
    while (ends < all) {
        if (is_inline)
            stream.wait();
        else
            std::this_thread::yield();
    }
    EXPECT(early == 0);
    stream.fence();
    /* Without calls, and with one at the start that throws. */
    stream.start(trihop::End::Round, {3, {}, {}});
    EXPECT(refused([&] { stream.start(trihop::End::Round, {-1, [&] { starts++; }, [] {}}); }) == TRIHOP_ERR_MISUSE);
    EXPECT(starts == all);
    stream.wait();
    bool was_thrown = false;
    try {
        stream.start(trihop::End::Round, {-1, [] { throw Thrown{}; }, {}});
    } catch (const Thrown &) {
        was_thrown = true;
    }
    EXPECT(was_thrown);
    stream.wait();
}

void gathers(trihop::Job &job) {
    std::vector<std::size_t> counts;
    const std::vector<std::uint32_t> mine(job.rank(), job.rank());
    const std::vector<std::uint32_t> all = job.allgatherv(mine, &counts);
    std::size_t at = 0;
    for (std::uint32_t rank = 0; rank < job.size(); rank++) {
        EXPECT(counts[rank] == rank);
        for (std::uint32_t times = 0; times < rank; times++)
            EXPECT(all[at++] == rank);
    }
    EXPECT(at == all.size() && job.allgatherv(std::vector<double>()).empty());
}

/* A stream that an exception leaves calls its handler no more: what that refers to is gone. */
void left_streams(trihop::Job &job) {
    struct Thrown {};
    auto alive = std::make_unique<int>(0);
    try {
        trihop::Stream<int> left(job, "left", [&](int) { (*alive)++; });
        left.push(job.rank(), 1);
        throw Thrown{};
    } catch (const Thrown &) {
        alive.reset();
    }
    std::uint64_t items = 0;
    trihop::Stream<char> generic(job, "generic", [&](const auto &) { items++; });
    for (int n = 0; n < 100; n++)
        generic.push(job.rank(), 'x');
    generic.fence();
    EXPECT(items == 100);
}

void conveyors(trihop::Job &job) {
    const std::uint32_t size = job.size();
    trihop::Conveyor<Edge> conveyor(job, "conveyor");
    for (int step = 1; step <= 5; step++) {
        std::uint32_t next = 0, heard = 0;
        while (conveyor.advance(next == 1000 * size)) {
            while (next < 1000 * size && conveyor.push(next % size, Edge{job.rank(), next % size, double(step)}))
                next++;
            std::uint32_t source = 0;
            while (const Edge *edge = conveyor.pull(&source)) {
                EXPECT(edge->from == source && edge->to == job.rank() && edge->weight == step);
                heard++;
            }
        }
        EXPECT(heard == 1000 * size && conveyor.state() == trihop::ConveyorState::Complete);
        conveyor.reset();
    }
    /* A step of other items. */
    for (int step = 0; step < 3; step++) {
        std::uint64_t sum = 0;
        auto advance = [&](auto &of, auto item) {
            bool has_sent = false;
            while (of.advance(has_sent)) {
                has_sent = has_sent || of.push(0, item);
                while (const auto *pulled = of.pull())
                    sum += std::uint64_t{*pulled};
            }
        };
        trihop::Conveyor<std::uint8_t> bytes(job, "bytes");
        advance(bytes, std::uint8_t{3});
        auto words = std::move(bytes).reset_as<std::uint64_t>();
        advance(words, std::uint64_t{1} << 40);
        EXPECT(job.rank() > 0 || sum == size * (3 + (std::uint64_t{1} << 40)));
    }
}

void replies(trihop::Job &job) {
    struct Question {
        std::uint32_t number;
        std::uint32_t asker;
    };
    const std::uint32_t size = job.size(), rank = job.rank();
    {
        trihop::Replies<Question, double> halves(job, "halves", 100, [&](const Question &asked, std::uint32_t source) {
            EXPECT(asked.asker == source);
            return asked.number / 2.0 + rank;
        });
        std::uint32_t asked = 0, pulled = 0;
        while (pulled < 2000) {
            while (asked < 2000 && halves.ask(asked % size, Question{asked, rank}))
                asked++;
            EXPECT(halves.outstanding() <= 100);
            for (double half; halves.pull(half); pulled++)
                EXPECT(half == pulled / 2.0 + pulled % size);
        }
    }
    trihop::Replies<char, char> fragile(job, "fragile", 4, [](char) -> char { throw std::runtime_error("no answer"); });
    EXPECT(fragile.ask(rank, 'x'));
    bool was_thrown = false;
    try {
        fragile.fence();
    } catch (const std::runtime_error &error) {
        was_thrown = std::string(error.what()) == "no answer";
    }
    EXPECT(was_thrown);
    char reply = 'y';
    EXPECT(fragile.pull(reply) && reply == 0);
    fragile.close();

    /* One bad answer: what others ask afterwards is answered, and no reply is gone by what a pull throws. */
    trihop::Replies<std::uint32_t, std::uint32_t> once(job, "once", 100, [](std::uint32_t number) {
        if (number == 7)
            throw std::runtime_error("not seven");
        return number + 1;
    });
    for (std::uint32_t number = 0; number < 20; number++)
        EXPECT(once.ask((rank + 1) % size, number));
    std::uint32_t thrown = 0, pulled = 0;
    while (once.outstanding() > 0) {
        try {
            for (std::uint32_t next = 0; once.pull(next); pulled++)
                EXPECT(next == (pulled == 7 ? 0 : pulled + 1));
        } catch (const std::runtime_error &error) {
            EXPECT(std::string(error.what()) == "not seven");
            thrown++;
        }
    }
    EXPECT(pulled == 20);
    try {
        once.fence();
    } catch (const std::runtime_error &) {
        thrown++;
    }
    EXPECT(thrown == 1);
    /* Closing inside of a handler is refused, and the answer stays as long as the stream. */
    {
        auto kept = std::make_unique<trihop::Replies<int, int>>(job, "kept", 1, [](int number) { return -number; });
        trihop::Stream<int> closing(job, "closing", [&](int) { kept.reset(); });
        closing.push(rank, 1);
        closing.fence();
        EXPECT(kept == nullptr);
    }
}

void merging(trihop::Job &job) {
    const std::uint32_t size = job.size();
    std::uint64_t travelled = 0;
    double sum = 0;
    trihop::Stream<Edge> stream(job, "merged", [&](const Edge &edge) {
        travelled++;
        sum += edge.weight;
    });
    trihop::Merging lightest(
        stream, 64, [](const Edge &edge) { return edge.from; },
        [](Edge &before, const Edge &edge) { before.weight += edge.weight; });
    for (std::uint32_t number = 0; number < 1000; number++)
        lightest.push(number % size, Edge{number % 3, 0, 0.5});
    lightest.flush();
    stream.fence();
    job.barrier();
    EXPECT(job.allreduce(sum) == 500.0 * size);
    EXPECT(job.allreduce(travelled + lightest.merged()) == 1000 * size);
    EXPECT(lightest.merged() > 900);
}

void collectives(trihop::Job &job) {
    const std::uint32_t size = job.size(), rank = job.rank();
    EXPECT(job.allreduce<std::uint64_t>(1) == size);
    EXPECT(job.allreduce<std::int64_t>(-std::int64_t{rank}, trihop::Reduce::Min) == 1 - std::int64_t{size});
    EXPECT(job.allreduce(0.25) == 0.25 * size);
    EXPECT(job.exscan<std::uint64_t>(2) == 2 * rank);
    EXPECT(job.broadcast(size - 1, 3 * rank) == 3 * (size - 1));
    const auto all = job.allgather(rank);
    for (std::uint32_t other = 0; other < size; other++)
        EXPECT(all[other] == other);
}

/* Elements of any type move; what functions of the program throw is thrown by its calls. */
void arrays(trihop::Job &job) {
    struct Thrown {};
    const std::uint32_t size = job.size(), rank = job.rank();
    const std::uint64_t keys = 10;
    trihop::Array<Tale, char> tales(
        job, "tales",
        [](Tale &tale, char letter, const trihop::ArrayCall<char> &call) {
            if (letter == '!')
                throw Thrown{};
            tale.text += letter;
            if (letter == 'b')
                call.push(call.key(), 'c');
            if (tale.text.size() % 3 == 0)
                call.migrate((call.rank() + 1) % call.ranks());
        },
        [size](std::uint64_t key) { return static_cast<std::uint32_t>(key / 2 % size); });
    for (std::uint64_t key = rank; key < keys; key += size) {
        tales.insert(key, Tale{std::to_string(key)});
        EXPECT(refused([&] { tales.insert(key, Tale{}); }) == TRIHOP_ERR_MISUSE);
    }
    tales.fence();
    const std::uint64_t mine = tales.count();
    tales.begin_step();
    for (std::uint64_t key = 0; key < keys; key++)
        for (char letter : {'a', 'b'})
            if (!tales.try_push(key, letter))
                tales.push(key, letter);
    tales.done(mine);
    tales.wait();
    std::atomic<int> calls{0};
    tales.begin_step(trihop::Contributors::Local, 1, {-1, [&] { tales.done(); }, [&] { calls++; }});
    tales.wait();
    tales.fence();
    /* With threads it may be made now. */
    while (calls == 0)
        std::this_thread::yield();
    tales.broadcast('.');
    tales.fence();
    std::uint64_t letters[2] = {0, 0};
    tales.each([&](std::uint64_t key, Tale &tale) {
        EXPECT(tale.text[0] == static_cast<char>('0' + key));
        letters[0] += tale.text.size();
        letters[1]++;
    });
    job.allreduce(letters, 2);
    /* A key, three letters of each rank, and one for all of each. */
    EXPECT(letters[0] == keys * (1 + 4 * size) && letters[1] == keys);
    const auto thrown = [](auto call) {
        try {
            call();
        } catch (const Thrown &) {
            return true;
        }
        return false;
    };
    const bool has_any = tales.count() > 0;
    EXPECT(thrown([&] { tales.each([](std::uint64_t, Tale &) { throw Thrown{}; }); }) == has_any);
    job.barrier();

    /* What cannot be packed stays, and can be taken away. */
    tales.insert(1000 + rank, Tale{"secret"});
    if (size > 1)
        EXPECT(packing_fails([&] { tales.migrate(1000 + rank, (rank + 1) % size); }));
    tales.fence();
    EXPECT(tales.remove(1000 + rank)->text == "secret");
    EXPECT(!tales.remove(1000 + rank).has_value());
    EXPECT(refused([&] { tales.push(0, 'x'), tales.migrate(1000 + rank, 0); }) == TRIHOP_ERR_MISUSE);

    auto moved = std::move(tales);
    moved.fence();
    const bool throws = moved.count() > 0;
    job.barrier(); /* what others broadcast may come in a fence */
    moved.broadcast('!');
    const bool fence_throws = thrown([&] { moved.fence(); });
    const bool close_throws = thrown([&] { moved.close(); });
    EXPECT((fence_throws || close_throws) == throws);

    /* Plain data needs no more than its type. */
    trihop::Array<Edge, Edge> edges(job, "edges", [](Edge &sum, const Edge &edge) { sum.weight += edge.weight; });
    edges.insert(rank, Edge{rank, 0, 0});
    edges.fence();
    edges.push((rank + 1) % size, Edge{rank, 0, 1.5});
    edges.fence();
    edges.migrate(rank, (rank + 1) % size);
    edges.push(rank, Edge{rank, 0, 2});
    edges.fence();
    EXPECT(edges.count() == 1);
    edges.each([&](std::uint64_t key, Edge &edge) {
        EXPECT(key == (rank + size - 1) % size && edge.from == key && std::abs(edge.weight - 3.5) < 1e-9);
    });
    EXPECT(size == 1 || edges.late() <= 1);

    /* Many in a call, and those of this rank in the call itself. */
    const bool is_inline = refused([&] { edges.own_at_once(); }) == TRIHOP_OK;
    const std::uint64_t owned = rank + size;
    edges.insert(owned, Edge{0, 0, 0});
    edges.fence();
    const std::uint64_t to[2] = {owned, owned};
    const Edge halves[2] = {Edge{0, 0, 0.5}, Edge{0, 0, 0.5}};
    std::size_t sent = 0;
    const auto weigh = [&] {
        double weight = 0;
        edges.each([&](std::uint64_t key, Edge &edge) { weight = key == owned ? edge.weight : weight; });
        return weight;
    };
    edges.extend(to, halves, 2, &sent);
    EXPECT(sent == 2 && (!is_inline || weigh() == 1.0));
    std::atomic<int> fences{0};
    edges.start_fence({-1, [&] { edges.push(owned, Edge{0, 0, 1}); }, [&] { fences++; }});
    edges.wait();
    while (fences == 0)
        std::this_thread::yield();
    EXPECT(weigh() == 2.0);
}

} // namespace

int main(int argc, char **argv) {
    try {
        const bool is_inline = argc > 1 && std::strcmp(argv[1], "inline") == 0;
        trihop::Job job(is_inline ? trihop::Seat::Inline : trihop::Seat::Threaded, trihop::Options().set("linger_us", "100"));
        handlers(job);
        records(job);
        long_items(job);
        exceptions(job);
        chains(job, is_inline);
        rounds(job, is_inline);
        gathers(job);
        left_streams(job);
        conveyors(job);
        if (is_inline)
            replies(job);
        merging(job);
        arrays(job);
        collectives(job);
        if (job.rank() == 0)
            std::cout << "ok" << std::endl;
        if (argc > 2 && std::string(argv[2]) == "own") {
            if (job.rank() == 1)
                throw std::runtime_error("a mistake of its own");
        } else if (argc > 2) {
            trihop::Stream<int> stream(job, "left by an exception", [](int) { throw std::runtime_error("on purpose"); });
            stream.push(job.rank(), 1);
            stream.fence();
        }
        job.finish();
    } catch (const std::exception &error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
    return 0;
}
