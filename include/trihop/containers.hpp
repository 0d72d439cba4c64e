/*
 * Containers that are spread over the ranks of a trihop::async::comm, in the style of YGM: a map, a set that counts, and a bag.
 *
 *   trihop::async::container::counting_set<std::string> words(world);
 *   for (const std::string &word : mine)
 *       words.async_insert(word);
 *   for (const auto &[word, times] : words.topk(10))
 *       world.cout0(word, ": ", times);
 *
 * Each key has an owner, by its hash, and is there only. What begins with async_ is a message to it, of the comm, and done when
 * the comm's next barrier returns; all ranks call the others together, except those that begin with local_. A container is made
 * and goes on all ranks, in one order; its end waits as comm::barrier() does.
 */
#ifndef TRIHOP_CONTAINERS_HPP
#define TRIHOP_CONTAINERS_HPP

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include <trihop/async.hpp>

namespace trihop::async::container {

namespace detail {

/* The owner of a key. std::hash of a number is the number itself, so it is mixed. */
template <class Hash, class Key> int owner(const Key &key, int ranks) {
    std::uint64_t hash = Hash{}(key);
    hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93;
    hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93;
    hash ^= hash >> 32;
    return static_cast<int>(hash % static_cast<std::uint64_t>(ranks));
}

/* Calls `function` with a key, its value, and the arguments; and with the comm before them where it takes that. */
template <class F, class Key, class Value, class... Args>
void visit(comm &world, F &function, const Key &key, Value &value, Args &...args) {
    if constexpr (std::is_invocable_v<F &, comm &, const Key &, Value &, Args &...>)
        function(world, key, value, args...);
    else if constexpr (std::is_invocable_v<F &, comm *, const Key &, Value &, Args &...>)
        function(&world, key, value, args...);
    else if constexpr (std::is_invocable_v<F &, const Key &, Value &, Args &...>)
        function(key, value, args...);
    else
        static_assert(async::detail::never<F>,
                      "a visitor takes the key, a reference to the value, and the arguments of the visit");
}

} // namespace detail

/* A value for each key. */
template <class Key, class Value, class Hash = std::hash<Key>> class map {
public:
    using key_type = Key;
    using mapped_type = Value;
    using local_type = std::unordered_map<Key, Value, Hash>;

    /* Empty. A visit makes a value that is not there of `missing`. */
    explicit map(comm &world, Value missing = Value()) : part_(world, Part{{}, std::move(missing), 0, {}}) {}

    int owner(const Key &key) const { return detail::owner<Hash>(key, world().size()); }
    bool is_mine(const Key &key) const { return owner(key) == world().rank(); }
    comm &world() const noexcept { return part_.world(); }

    /* Where the key is not there yet. */
    void async_insert(const Key &key, const Value &value) {
        world().async(
            owner(key),
            [](pointer<Part> part, Key &&sent, Value &&with) { part->values.emplace(std::move(sent), std::move(with)); },
            part_, key, value);
    }

    void async_insert_or_assign(const Key &key, const Value &value) {
        world().async(
            owner(key),
            [](pointer<Part> part, Key &&sent, Value &&with) { part->values.insert_or_assign(std::move(sent), std::move(with)); },
            part_, key, value);
    }

    /* Calls `visitor` where the key is, with `const Key &`, `Value &` and the arguments; it may take the comm before them. */
    template <class F, class... Args> void async_visit(const Key &key, F visitor, const Args &...args) {
        (void)visitor;
        check_visitor<F>();
        world().async(
            owner(key),
            [](comm &here, pointer<Part> part, const Key &sent, async::detail::stored_t<Args> &...with) {
                async::detail::Empty<F> stored;
                auto &[at, value] = *part->values.try_emplace(sent, part->missing).first;
                detail::visit(here, stored.get(), at, value, with...);
            },
            part_, key, args...);
    }

    /* As async_visit, where the key is there. */
    template <class F, class... Args> void async_visit_if_contains(const Key &key, F visitor, const Args &...args) {
        (void)visitor;
        check_visitor<F>();
        world().async(
            owner(key),
            [](comm &here, pointer<Part> part, const Key &sent, async::detail::stored_t<Args> &...with) {
                async::detail::Empty<F> stored;
                const auto found = part->values.find(sent);
                if (found != part->values.end())
                    detail::visit(here, stored.get(), found->first, found->second, with...);
            },
            part_, key, args...);
    }

    /* The value becomes `reduce(what it is, value)`; or `value` where there is none. */
    template <class F> void async_reduce(const Key &key, const Value &value, F reduce) {
        (void)reduce;
        check_visitor<F>();
        world().async(
            owner(key),
            [](pointer<Part> part, Key &&sent, Value &&with) {
                async::detail::Empty<F> stored;
                const auto [at, is_new] = part->values.try_emplace(std::move(sent), with);
                if (!is_new)
                    at->second = stored.get()(std::as_const(at->second), std::as_const(with));
            },
            part_, key, value);
    }

    void async_erase(const Key &key) {
        world().async(owner(key), [](pointer<Part> part, const Key &sent) {
            if (part->passes == 0)
                part->values.erase(sent);
            else if (auto node = part->values.extract(sent))
                part->gone.insert(std::move(node));
        }, part_, key);
    }

    /* Behind a barrier, calls `function(const Key &, Value &)` for what is here then, on each rank. It may send, also to this
     * map: what that inserts is not among those, and what it erases no longer. */
    template <class F> void for_all(F function) {
        world().barrier();
        std::vector<std::pair<const Key, Value> *> all;
        all.reserve(part_->values.size());
        for (auto &each : part_->values)
            all.push_back(&each);
        const Pass pass(*part_);
        world().cf_barrier(); /* before that, nobody sends */
        for (auto *each : all)
            if (const auto found = part_->values.find(each->first); found != part_->values.end() && &*found == each)
                function(each->first, each->second);
    }

    /* How many keys there are. */
    std::size_t size() {
        world().barrier();
        return world().all_reduce_sum(local_size());
    }

    /* What is there of the keys that any rank asks for, on each rank. */
    std::map<Key, Value> gather(const std::vector<Key> &keys) {
        world().barrier();
        std::map<Key, Value> mine;
        const auto asked = world().all_reduce(keys, [](std::vector<Key> a, const std::vector<Key> &b) {
            a.insert(a.end(), b.begin(), b.end());
            return a;
        });
        for (const Key &key : asked)
            if (const auto found = part_->values.find(key); found != part_->values.end())
                mine.insert(*found);
        return world().all_reduce(mine, [](std::map<Key, Value> a, std::map<Key, Value> b) {
            a.merge(b);
            return a;
        });
    }

    /* Empties it. */
    void clear() {
        world().barrier();
        part_->values.clear();
        world().cf_barrier();
    }

    std::size_t local_size() const noexcept { return part_->values.size(); }
    local_type &local() noexcept { return part_->values; }

private:
    struct Part {
        local_type values;
        Value missing;
        /* While for_all goes on, what is erased stays in memory, since its function may just have it. */
        unsigned passes = 0;
        std::unordered_multimap<Key, Value, Hash> gone;
    };

    class Pass {
    public:
        explicit Pass(Part &part) : part_(part) { part_.passes++; }
        Pass(const Pass &) = delete;
        ~Pass() {
            if (--part_.passes == 0)
                part_.gone.clear();
        }

    private:
        Part &part_;
    };

    template <class F> static constexpr void check_visitor() {
        static_assert(std::is_class_v<F> && std::is_empty_v<F>, "a visitor has no captures: give what it needs as arguments");
    }

    distributed<Part> part_;
};

/* How often each key was inserted. */
template <class Key, class Hash = std::hash<Key>> class counting_set {
public:
    using key_type = Key;

    explicit counting_set(comm &world) : counts_(world) {}

    comm &world() const noexcept { return counts_.world(); }
    int owner(const Key &key) const { return counts_.owner(key); }

    void async_insert(const Key &key) {
        counts_.async_visit(key, [](const Key &, std::uint64_t &count) { count++; });
    }

    /* Behind a barrier, calls `function(const Key &, std::uint64_t)` for what is here, on each rank. */
    template <class F> void for_all(F function) {
        counts_.for_all([&](const Key &key, std::uint64_t &count) { function(key, std::as_const(count)); });
    }

    /* How many different keys there are, and how many were inserted. */
    std::size_t size() { return counts_.size(); }

    std::uint64_t count_all() {
        std::uint64_t all = 0;
        for_all([&](const Key &, std::uint64_t count) { all += count; });
        return world().all_reduce_sum(all);
    }

    /* How often this key was inserted; each rank asks for the same. */
    std::uint64_t count(const Key &key) {
        world().barrier();
        const auto found = counts_.local().find(key);
        return world().all_reduce_sum(found == counts_.local().end() ? std::uint64_t{0} : found->second);
    }

    /* The keys that were inserted most often, on each rank; of equal ones the smaller key is first. */
    std::vector<std::pair<Key, std::uint64_t>> topk(std::size_t most) {
        using Counts = std::vector<std::pair<Key, std::uint64_t>>;
        const auto keep = [most](Counts counts) {
            std::sort(counts.begin(), counts.end(), [](const auto &a, const auto &b) {
                return a.second != b.second ? a.second > b.second : a.first < b.first;
            });
            counts.resize(std::min(most, counts.size()));
            return counts;
        };
        Counts mine;
        for_all([&](const Key &key, std::uint64_t count) { mine.emplace_back(key, count); });
        return world().all_reduce(keep(std::move(mine)), [&](Counts a, const Counts &b) {
            a.insert(a.end(), b.begin(), b.end());
            return keep(std::move(a));
        });
    }

    void clear() { counts_.clear(); }
    std::size_t local_size() const noexcept { return counts_.local_size(); }

private:
    map<Key, std::uint64_t, Hash> counts_;
};

/* Items in no order, dealt out to the ranks in turn. */
template <class Item> class bag {
public:
    explicit bag(comm &world) : items_(world), next_(world.rank()) {}

    comm &world() const noexcept { return items_.world(); }

    void async_insert(const Item &item) {
        async_insert(item, next_);
        next_ = (next_ + 1) % world().size();
    }

    /* On this rank. */
    void async_insert(const Item &item, int dest) {
        world().async(
            dest, [](pointer<std::vector<Item>> items, Item &&sent) { items->push_back(std::move(sent)); }, items_, item);
    }

    /* Behind a barrier, calls `function(Item &)` for what is here then, on each rank. It may send, also to this bag: what comes
     * while it goes on comes behind. What it throws leaves the bag without the items of this rank. */
    template <class F> void for_all(F function) {
        world().barrier();
        std::vector<Item> all;
        all.swap(*items_);
        world().cf_barrier(); /* before that, nobody sends */
        for (Item &item : all)
            function(item);
        all.insert(all.end(), std::make_move_iterator(items_->begin()), std::make_move_iterator(items_->end()));
        items_->swap(all);
    }

    std::size_t size() {
        world().barrier();
        return world().all_reduce_sum(items_->size());
    }

    /* All items, on each rank: by rank, in the order in which they came there. */
    std::vector<Item> gather() {
        world().barrier();
        return world().all_reduce(*items_, [](std::vector<Item> a, const std::vector<Item> &b) {
            a.insert(a.end(), b.begin(), b.end());
            return a;
        });
    }

    void clear() {
        world().barrier();
        items_->clear();
        world().cf_barrier();
    }

    std::size_t local_size() const noexcept { return items_->size(); }
    std::vector<Item> &local() noexcept { return *items_; }

private:
    distributed<std::vector<Item>> items_;
    int next_;
};

} // namespace trihop::async::container

#endif /* TRIHOP_CONTAINERS_HPP */
