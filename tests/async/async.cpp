/*
 * A program whose ranks send each other functions: async [WHAT], with `all` for what has to go well, and one of `throws`, `lost`,
 * `order` for what has to fail.
 */
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <trihop/containers.hpp>

namespace async = trihop::async;

#define CHECK(holds)                                                                     \
    do {                                                                                 \
        if (!(holds)) {                                                                  \
            std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #holds); \
            std::exit(1);                                                                \
        }                                                                                \
    } while (0)

static std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ (x >> 31)) * 0xd6e8feb86659fd93 + 0x9e3779b97f4a7c15;
    return (x ^ (x >> 29)) * 0xff51afd7ed558ccd >> 7;
}

enum class Colour : std::uint16_t { Red = 7, Green = 300 };

struct Point {
    double x, y;
    bool operator==(const Point &other) const { return x == other.x && y == other.y; }
};

/* A type of a program, which says itself what it is made of; and one that cannot be copied byte by byte in it. */
struct Person {
    std::string name;
    std::vector<Person> children;
    std::optional<Point> home;

    template <class Archive> void serialize(Archive &archive) { archive(name, children) & home; }

    bool operator==(const Person &other) const {
        return name == other.name && children == other.children && home == other.home;
    }
};

/* Reads more than it has written. */
struct Liar {
    template <class Archive> void serialize(Archive &archive) {
        std::uint32_t word = 1;
        archive(word);
        if constexpr (!Archive::is_writing)
            archive(word);
    }
};

struct Nothing {
    template <class Archive> void serialize(Archive &) {}
    bool operator<(const Nothing &) const { return false; }
    bool operator==(const Nothing &) const { return true; }
};

/* There and back; every beginning of the bytes is refused, and so is a byte more. Bytes that are changed are a value or refused:
 * no memory that is not there is read or asked for. */
template <class T> static void comes_back(const T &value) {
    std::vector<unsigned char> bytes = async::to_bytes(value);
    CHECK(async::from_bytes<T>(bytes.data(), bytes.size()) == value);
    const auto is_refused = [](const std::vector<unsigned char> &bytes) {
        /* In memory of just that length, which tools know the end of. */
        const std::unique_ptr<unsigned char[]> exact(new unsigned char[bytes.size()]);
        std::copy(bytes.begin(), bytes.end(), exact.get());
        try {
            async::from_bytes<T>(exact.get(), bytes.size());
            return false;
        } catch (const async::BadBytes &) {
            return true;
        }
    };
    for (std::size_t length = 0; length < bytes.size(); length++)
        CHECK(is_refused({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)}));
    bytes.push_back(1);
    CHECK(is_refused(bytes));
    for (std::size_t at = 0; at + 1 < bytes.size(); at++)
        for (const unsigned char other : {0, 1, 127, 128, 255}) {
            std::vector<unsigned char> changed(bytes.begin(), bytes.end() - 1);
            changed[at] = other;
            (void)is_refused(changed);
        }
}

static void archives() {
    const Person child{"Ada", {}, Point{1, 2}};
    comes_back(true);
    comes_back(std::int8_t{-3});
    comes_back(std::uint64_t{1} << 63);
    comes_back(-2.5);
    comes_back(Colour::Green);
    comes_back(Point{3, 4});
    comes_back(std::string());
    comes_back(std::string("a\0b", 3));
    comes_back(std::string(300, 'x'));
    comes_back(std::vector<int>{1, -2, 3});
    comes_back(std::vector<bool>{true, false, true});
    comes_back(std::vector<std::string>{"", "one", "three"});
    comes_back(std::vector<Nothing>(3));
    comes_back(std::deque<std::vector<short>>{{1}, {}, {2, 3}});
    comes_back(std::array<std::string, 2>{"left", "right"});
    comes_back(std::make_pair(1, std::string("one")));
    comes_back(std::make_tuple(std::string("a"), 2.0, std::vector<char>{'b'}));
    comes_back(std::vector<std::tuple<>>(2));
    comes_back(std::optional<std::string>());
    comes_back(std::optional<std::string>("there"));
    comes_back(std::map<std::string, std::vector<int>>{{"a", {1}}, {"b", {}}});
    comes_back(std::multimap<int, int>{{1, 2}, {1, 3}});
    comes_back(std::unordered_map<int, std::string>{{1, "one"}, {2, "two"}});
    comes_back(std::set<std::pair<int, int>>{{1, 2}, {3, 4}});
    comes_back(Person{"Byron", {child, child}, {}});
    /* A length of almost 2^64, and a key that is there twice. */
    const unsigned char longest[] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0};
    const unsigned char twice[] = {2, 5, 5};
    for (int what = 0; what < 5; what++)
        try {
            if (what == 0)
                async::from_bytes<std::string>(longest, sizeof longest);
            else if (what == 1)
                async::from_bytes<std::vector<double>>(longest, sizeof longest);
            else if (what == 2)
                async::from_bytes<std::map<std::string, int>>(longest, sizeof longest);
            else if (what == 3)
                async::from_bytes<std::set<char>>(twice, sizeof twice);
            else
                async::from_bytes<bool>(twice, 1); /* neither true nor false */
            CHECK(!"refused");
        } catch (const async::BadBytes &) {
        }
}

/* Handlers with and without the comm, arguments of any kind, and calls that handlers make. */
struct Chain {
    void operator()(async::comm &world, async::pointer<std::uint64_t> calls, int hops) const {
        ++*calls;
        if (hops > 0)
            world.async((world.rank() + 1) % world.size(), Chain{}, calls, hops - 1);
    }
};

static void calls(async::comm &world) {
    static std::uint64_t heard;
    heard = 0;
    world.cf_barrier(); /* others send soon */
    for (int rank = 0; rank < world.size(); rank++) {
        world.async(rank, [](const std::string &word, Person who, const std::vector<Colour> &colours) {
            heard += word == "literal" && who.name == "Ada" && colours.size() == 2;
        }, "literal", Person{"Ada", {}, {}}, std::vector<Colour>{Colour::Red, Colour::Green});
        world.async(rank, [](async::comm *world, int &from) {
            world->async(from, [](std::optional<double> &&half, std::string_view word) {
                heard += half == 0.5 && word == "answer";
            }, std::optional<double>(0.5), std::string_view("answer"));
        }, world.rank());
        world.async(rank, [](auto &world, auto number) { heard += static_cast<int>(number) < world.size(); }, 0.0F);
    }
    world.barrier();
    CHECK(heard == 3 * static_cast<std::uint64_t>(world.size()));
}

static void chains(async::comm &world) {
    async::distributed<std::uint64_t> calls(world, 0u);
    for (int chain = 0; chain < 20; chain++)
        world.async(chain % world.size(), Chain{}, calls, 50);
    world.barrier();
    CHECK(world.all_reduce_sum(*calls) == 20u * 51 * static_cast<unsigned>(world.size()));

    /* A handler that gives each call two more, until they are many. */
    static std::uint64_t leaves;
    leaves = 0;
    world.cf_barrier();
    struct Tree {
        void operator()(async::comm *world, unsigned depth, std::uint64_t seed) const {
            if (depth == 0) {
                leaves++;
                return;
            }
            for (std::uint64_t branch = 1; branch <= 2; branch++)
                world->async(static_cast<int>(mixed(seed + branch) % static_cast<unsigned>(world->size())), Tree{}, depth - 1,
                             mixed(seed * 2 + branch));
        }
    };
    if (world.rank0())
        world.async(0, Tree{}, 12u, std::uint64_t{1});
    world.barrier();
    CHECK(world.all_reduce_sum(leaves) == 4096);
}

static void several_ranks(async::comm &world) {
    static std::vector<std::string> got;
    got.clear();
    world.cf_barrier();
    const std::string mine(static_cast<std::size_t>(world.rank()) + 1, 'r');
    const auto take = [](const std::string &word) { got.push_back(word); };
    world.async_bcast(take, mine);
    world.async_bcast(take, std::string(100'000, 'l')); /* longer than a frame */
    world.async_mcast({0, world.size() - 1}, take, std::string("m"));
    world.barrier();
    std::size_t letters = 0;
    for (const std::string &word : got)
        letters += word.size();
    const auto size = static_cast<std::size_t>(world.size());
    std::size_t expected = size * (size + 1) / 2 + size * 100'000;
    if (world.rank() == 0)
        expected += size;
    if (world.rank() == world.size() - 1)
        expected += size;
    CHECK(letters == expected);

    /* Only what comes makes it go on. */
    static int gone;
    gone = 0;
    world.cf_barrier();
    world.async((world.rank() + 1) % world.size(), [] { gone++; });
    world.local_wait_until([] { return gone == 1; });
    world.barrier();
    CHECK(world.all_reduce_max(world.rank()) == world.size() - 1 && world.all_reduce_min(-1.5) == -1.5);
    const auto names = world.all_reduce(std::to_string(world.rank()), [](std::string a, const std::string &b) { return a + b; });
    CHECK(names.substr(0, 1) == "0" && names.size() == size);
    CHECK(world.bcast(std::string("of ") + std::to_string(world.rank()), world.size() - 1) ==
          "of " + std::to_string(world.size() - 1));
    CHECK(world.bcast(std::vector<int>(), 0).empty());
}

/* Labels of the components of a graph, by handlers that send on, against those that each rank finds alone. */
static void components(async::comm &world) {
    constexpr std::uint64_t vertices = 600, edges = 500;
    using Labels = std::unordered_map<std::uint64_t, std::pair<std::uint64_t, std::vector<std::uint64_t>>>;
    async::distributed<Labels> graph(world);
    const auto owner = [](async::comm &world, std::uint64_t vertex) {
        return static_cast<int>(vertex % static_cast<std::uint64_t>(world.size()));
    };
    struct Visit {
        void operator()(async::comm &world, async::pointer<Labels> graph, std::uint64_t vertex, std::uint64_t label) const {
            auto &[mine, neighbours] = graph->at(vertex);
            if (label >= mine)
                return;
            mine = label;
            for (const std::uint64_t next : neighbours)
                world.async(static_cast<int>(next % static_cast<std::uint64_t>(world.size())), Visit{}, graph, next, label);
        }
    };
    std::vector<std::uint64_t> alone(vertices);
    std::iota(alone.begin(), alone.end(), 0);
    const auto root = [&](std::uint64_t vertex) {
        while (alone[vertex] != vertex)
            vertex = alone[vertex];
        return vertex;
    };
    for (std::uint64_t vertex = 0; vertex < vertices; vertex++)
        if (owner(world, vertex) == world.rank())
            (*graph)[vertex].first = vertices;
    for (std::uint64_t edge = 0; edge < edges; edge++) {
        const std::uint64_t a = mixed(edge) % vertices, b = mixed(edge + edges) % vertices;
        if (owner(world, a) == world.rank())
            (*graph)[a].second.push_back(b);
        if (owner(world, b) == world.rank())
            (*graph)[b].second.push_back(a);
        alone[std::max(root(a), root(b))] = std::min(root(a), root(b));
    }
    world.cf_barrier();
    for (std::uint64_t vertex = 0; vertex < vertices; vertex++)
        if (owner(world, vertex) == world.rank())
            world.async(world.rank(), Visit{}, graph, vertex, vertex);
    world.barrier();
    for (const auto &[vertex, state] : *graph)
        CHECK(state.first == root(vertex));
}

static void containers(async::comm &world) {
    const auto size = static_cast<std::uint64_t>(world.size());
    async::container::counting_set<std::string> words(world);
    for (std::uint64_t n = 0; n < 1000; n++)
        words.async_insert("word" + std::to_string(n % 10 * (n % 10)));
    CHECK(words.size() == 10 && words.count_all() == 1000 * size && words.count("word49") == 100 * size);
    words.async_insert("word9");
    const auto most = words.topk(2);
    CHECK(most.size() == 2 && most[0] == std::make_pair(std::string("word9"), 101 * size) && most[1].first == "word0");

    async::container::map<int, std::string> map(world, "new");
    for (int key = 0; key < 50; key++)
        if (key % world.size() == world.rank())
            map.async_insert(key, "first");
    world.barrier();
    map.async_insert(7, "second"); /* is there already */
    map.async_visit(100, [](const int &key, std::string &value, int step) { value += std::to_string(key + step); }, 1);
    map.async_visit_if_contains(200, [](const int &, std::string &value) { value = "wrong"; });
    for (int key = 0; key < 5; key++)
        map.async_erase(key);
    std::string longer = "new";
    for (std::uint64_t rank = 0; rank < size; rank++)
        longer += "101";
    CHECK(map.size() == 46);
    CHECK((map.gather({7, 100, 200, 3}) == std::map<int, std::string>{{7, "first"}, {100, longer}}));
    map.async_insert_or_assign(7, "third");
    map.async_reduce(8, "+", [](const std::string &a, const std::string &b) { return a + b; });
    map.async_reduce(300, "+", [](const std::string &a, const std::string &b) { return a + b; });
    /* A visitor that sends, and a pass over all that does. */
    map.async_visit(9, [](async::comm &world, const int &key, std::string &, async::pointer<int> sum) {
        world.async(0, [](async::pointer<int> sum, int key) { *sum += key; }, sum, key);
    }, world.make_pointer(*std::make_unique<int>(0).release()));
    world.barrier();
    const auto got = map.gather({7, 8, 300});
    CHECK(got.at(7) == "third" && got.at(8) == "first" + std::string(size, '+') && got.at(300) == std::string(size, '+'));
    map.for_all([&](const int &key, std::string &) { map.async_visit(key + 1000, [](const int &, std::string &) {}); });
    CHECK(map.size() == 2 * 47);
    /* Erased while a pass has it. */
    map.for_all([&](const int &key, std::string &value) {
        map.async_erase(key);
        for (int other = 0; other < 1200; other += 100)
            map.async_erase(other + key % 100);
        world.local_progress();
        value += "is still in memory";
    });
    CHECK(map.size() == 0);

    async::container::bag<std::vector<int>> bag(world);
    for (int n = 0; n < 40; n++)
        bag.async_insert({n});
    CHECK(bag.size() == 40 * size && bag.local_size() == 40);
    bag.for_all([&](std::vector<int> &item) {
        item.push_back(1);
        if (item[0] == 0)
            bag.async_insert({-1});
    });
    CHECK(bag.size() == 41 * size);
    auto all = bag.gather();
    CHECK(all.size() == 41 * size && std::count(all.begin(), all.end(), std::vector<int>{5, 1}) == world.size());
    bag.clear();
    CHECK(bag.size() == 0);
}

/* What a handler throws comes out of its own rank's barrier, once; and the job goes on. */
static void throws(async::comm &world) {
    for (int round = 0; round < 3; round++) {
        if (world.rank0())
            world.async(world.size() - 1, [](int round) { throw std::runtime_error("round " + std::to_string(round)); }, round);
        std::string what;
        try {
            world.barrier();
        } catch (const std::runtime_error &error) {
            what = error.what();
        }
        CHECK(what == (world.rank() == world.size() - 1 ? "round " + std::to_string(round) : ""));
        world.cf_barrier(); /* before the next one is sent */
    }
    bool is_refused = false;
    try {
        world.async(world.size(), [] {});
    } catch (const trihop::Error &error) {
        is_refused = error.status() == TRIHOP_ERR_RANK;
    }
    CHECK(is_refused);
    /* A handler may not wait, and bytes that are none of a handler's arguments are none. */
    std::string nested, bad, gone;
    world.async(world.rank(), [](async::comm &world) { world.barrier(); });
    try {
        world.barrier();
    } catch (const trihop::Error &error) {
        nested = error.status() == TRIHOP_ERR_NESTED ? "nested" : error.what();
    }
    world.async(world.rank(), [](const Liar &) { std::abort(); }, Liar{});
    try {
        world.barrier();
    } catch (const async::BadBytes &error) {
        bad = error.what();
    }
    /* A pointer to nothing, and one to an object that has gone. */
    async::pointer<int> old;
    world.async(world.rank(), [](async::pointer<int>) { std::abort(); }, old);
    bool is_nothing = false;
    try {
        world.barrier();
    } catch (const async::BadBytes &) {
        is_nothing = true;
    }
    CHECK(is_nothing);
    {
        async::distributed<int> object(world, 5);
        old = object.get();
    }
    world.async(world.rank(), [](async::pointer<int>) { std::abort(); }, old);
    try {
        world.barrier();
    } catch (const async::BadBytes &error) {
        gone = error.what();
    }
    CHECK(nested == "nested" && bad == "a value needs 4 bytes where 0 are left" && gone.find("no longer") != std::string::npos);
}

int main(int argc, char **argv) {
    const std::string what = argc > 1 ? argv[1] : "all";
    async::comm world(&argc, &argv);

    if (what == "all") {
        archives();
        calls(world);
        chains(world);
        several_ranks(world);
        components(world);
        containers(world);
        throws(world);
    } else if (what == "throws") {
        /* Nobody catches it. */
        world.async(0, [](async::comm &world) { throw std::runtime_error("rank " + std::to_string(world.rank()) + " had enough"); });
        world.barrier();
        for (;;) /* others wait for what does not come, and are told */
            world.cf_barrier();
    } else if (what == "lost") {
        world.async(0, [] { throw std::runtime_error("nobody asked"); });
        return 0;
    } else if (what == "order") {
        if (world.rank0())
            world.make_pointer(world);
        async::distributed<int> object(world, 1);
    }
    world.barrier();
    world.cout0(world.size(), " ranks");
}
