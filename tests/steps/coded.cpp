/* Values of any length by trihop/coded.hpp: `coded inline|threaded`. Says "ok" on rank 0. */
#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <trihop/coded.hpp>

namespace {

void expect(bool is_so, const char *what) {
    if (!is_so)
        throw std::runtime_error(std::string("not so: ") + what);
}

#define EXPECT(what) expect(what, #what)

struct Visit {
    std::string name;
    std::vector<std::uint32_t> ranks;

    template <class Archive> void serialize(Archive &archive) { archive(name, ranks); }
};

/* Texts as they are. */
struct Letters {
    template <class T> static void write(const T &text, std::vector<unsigned char> &bytes) {
        if (text == "refused")
            throw std::invalid_argument(text);
        bytes.insert(bytes.end(), text.begin(), text.end());
    }

    template <class T> static T read(const void *bytes, std::size_t length) {
        const T text(static_cast<const char *>(bytes), length);
        if (text == "unreadable")
            throw std::domain_error(text);
        return text;
    }
};

/* Each visit goes round all ranks, and comes home. */
void visits(trihop::Job &job) {
    const std::uint32_t size = job.size(), rank = job.rank();
    std::map<std::string, std::size_t> home;
    using Visits = trihop::Coded<Visit>;
    Visits stream(job, "visits", [&](Visit visit, const trihop::Arrival<Visit> &arrival) {
        EXPECT(arrival.rank() == rank && arrival.ranks() == size && arrival.source() == visit.ranks.back());
        if (visit.ranks.size() == size) {
            home[visit.name]++;
            return;
        }
        visit.ranks.push_back(rank);
        arrival.push((rank + 1) % size, visit);
    });
    const std::string long_name(30'000, static_cast<char>('a' + rank % 26));
    for (int times = 0; times < 50; times++) {
        stream.push((rank + 1) % size, Visit{"short", {rank}});
        if (!stream.try_push((rank + 1) % size, Visit{"tried", {rank}}))
            stream.push((rank + 1) % size, Visit{"tried", {rank}});
    }
    stream.push((rank + 1) % size, Visit{long_name, {rank}});
    stream.fence();
    EXPECT(home["short"] == 50 && home["tried"] == 50 && home[long_name] == 1 && home.size() == 3);
}

/* A codec of the program's, broadcasts, steps, and what the codec throws. */
void texts(trihop::Job &job, bool is_inline) {
    const std::uint32_t size = job.size(), rank = job.rank();
    std::size_t letters = 0;
    trihop::Coded<std::string, Letters> texts(job, "texts", [&](const std::string &text) { letters += text.size(); });
    texts.begin_step(trihop::Contributors::Local, 1);
    texts.broadcast("four");
    texts.broadcast("to others", TRIHOP_TO_OTHERS);
    texts.push(rank, std::string());
    texts.done();
    texts.wait();
    EXPECT(letters == 4 * size + 9 * (size - 1));
    bool was_thrown = false;
    try {
        texts.push(rank, "refused");
    } catch (const std::invalid_argument &) {
        was_thrown = true;
    }
    EXPECT(was_thrown);
    job.barrier();
    texts.push(rank, "unreadable");
    was_thrown = false;
    for (int times = 0; times < 2; times++) {
        try {
            texts.fence();
        } catch (const std::domain_error &) {
            was_thrown = true;
        }
    }
    EXPECT(was_thrown);
    if (is_inline) {
        texts.own_at_once();
        letters = 0;
        texts.push(rank, "at once");
        EXPECT(letters == 7);
    }
}

} // namespace

int main(int argc, char **argv) {
    try {
        const bool is_inline = argc > 1 && std::strcmp(argv[1], "inline") == 0;
        trihop::Job job(is_inline ? trihop::Seat::Inline : trihop::Seat::Threaded);
        visits(job);
        texts(job, is_inline);
        if (job.rank() == 0)
            std::cout << "ok" << std::endl;
        job.finish();
    } catch (const std::exception &error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
    return 0;
}
