/*
 * Functions that are sent to other ranks, in the style of YGM: a lambda without captures, or an object of an empty class, and
 * the arguments that it is called with there.
 *
 *   trihop::async::comm world(&argc, &argv);
 *   static std::uint64_t heard = 0;
 *   for (int rank = 0; rank < world.size(); rank++)
 *       world.async(rank, [](const std::string &word) { heard += word.size(); }, "hello");
 *   world.barrier();
 *   world.cout0(world.all_reduce_sum(heard), " letters were heard");
 *
 * A handler is called on its rank inside of calls of the comm, by the one thread that made it, one handler at a time; so it
 * needs no lock. It may take the comm as its first argument, as `comm &` or `comm *`, and send on; it may not wait. barrier()
 * returns once nothing is under way on any rank, whatever handlers have sent. Other ranks may have returned from it before, and
 * what they send then may be handled here while this rank is still in it: a program that makes something ready for the next
 * step does so before the barrier, or has a cf_barrier() behind that.
 *
 * Only the arguments and a number travel. Each function that a program sends is known by its type before main; a comm sorts
 * them by name, and checks that all ranks have the same ones. So all ranks run one program.
 *
 * What a handler throws is thrown again by the next barrier, async or local_progress of its rank, and what comes for it until
 * then is dropped. An exception that leaves the scope of a comm ends the job on all ranks.
 */
#ifndef TRIHOP_ASYNC_HPP
#define TRIHOP_ASYNC_HPP

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <trihop.hpp>
#include <trihop/functions.hpp>

namespace trihop::async {

namespace detail {

/* Prints nothing. */
inline std::ostream &nowhere() {
    static thread_local std::ostream stream(nullptr);
    return stream;
}

} // namespace detail

/* One rank's part of a job whose ranks send each other functions. It is used by the thread that has made it. */
class comm {
public:
    /* Joins the job that the process was started in: see trihop_init. Collective. */
    comm() : comm(std::make_unique<Job>(Seat::Inline)) {}
    explicit comm(const Options &options) : comm(std::make_unique<Job>(Seat::Inline, options)) {}

    /* As YGM's; trihop takes nothing from the command line. */
    comm(int *, char ***) : comm() {}

    /* That of a mini-rank: see trihop_miniranks_t. */
    comm(const MiniRanks &miniranks, std::uint32_t index) : comm(std::make_unique<Job>(miniranks, index)) {}

    comm(const comm &) = delete;
    comm &operator=(const comm &) = delete;

    /* Waits as barrier() does, and leaves the job. */
    ~comm() {
        if (scope_.is_left_by_exception())
            return; /* the job ends, and calls no handler any more */
        const trihop_status_t status = trihop_stream_close(stream_);
        if (status == TRIHOP_OK && failure_ == nullptr)
            return;
        /* Nobody is left to throw it to, and what was sent may be lost. */
        const std::string why = failure_ == nullptr
                                    ? std::string("the last barrier has failed: ") + trihop_last_error()
                                    : "a handler has thrown behind the last barrier: " + trihop::detail::text_of(failure_);
        std::fprintf(stderr, "trihop::async: rank %d: %s\n", rank(), why.c_str());
        trihop_abort(job_->get(), EXIT_FAILURE, why.c_str());
        std::_Exit(EXIT_FAILURE);
    }

    int rank() const { return static_cast<int>(job_->rank()); }
    int size() const { return static_cast<int>(job_->size()); }
    bool rank0() const { return rank() == 0; }
    const Job &job() const noexcept { return *job_; }

    /* Calls `function` on rank `dest` with copies of the arguments, some time before the next barrier returns. */
    template <class F, class... Args> void async(int dest, F function, const Args &...args) {
        (void)function;
        rethrow();
        Buffer buffer(*this);
        const std::uint32_t kind = pack<F>(buffer.bytes(), args...);
        check(trihop_stream_send(stream_, static_cast<std::uint32_t>(dest), kind, buffer.bytes().data(),
                                 buffer.bytes().size()));
    }

    /* As async, on all ranks, this one too. */
    template <class F, class... Args> void async_bcast(F function, const Args &...args) {
        (void)function;
        rethrow();
        Buffer buffer(*this);
        const std::uint32_t kind = pack<F>(buffer.bytes(), args...);
        check(trihop_stream_broadcast(stream_, kind, buffer.bytes().data(), buffer.bytes().size(), TRIHOP_TO_EVERYONE));
    }

    /* As async, on each of these ranks. */
    template <class F, class... Args>
    void async_mcast(const std::vector<int> &dests, F function, const Args &...args) {
        (void)function;
        rethrow();
        Buffer buffer(*this);
        const std::uint32_t kind = pack<F>(buffer.bytes(), args...);
        for (const int dest : dests)
            check(trihop_stream_send(stream_, static_cast<std::uint32_t>(dest), kind, buffer.bytes().data(),
                                     buffer.bytes().size()));
    }

    /* Returns on all ranks once all that was sent has been called, also what handlers have sent. Collective. */
    void barrier() {
        const trihop_status_t status = trihop_stream_fence(stream_);
        rethrow();
        check(status);
    }

    /* Waits for all ranks, and not for what is under way. Collective. */
    void cf_barrier() const { job_->barrier(); }

    /* A round of progress: handlers are called. */
    void local_progress() {
        job_->poll();
        rethrow();
    }

    /* Makes progress until `condition` holds, which handlers of this rank make true. */
    template <class Condition> void local_wait_until(Condition condition) {
        while (!condition())
            if (local_progress_moves() == false)
                std::this_thread::yield();
    }

    /* The sum, the smallest, the largest of all ranks' numbers. Collective. */
    template <class T> T all_reduce_sum(T value) const { return reduced(value, Reduce::Sum); }
    template <class T> T all_reduce_min(T value) const { return reduced(value, Reduce::Min); }
    template <class T> T all_reduce_max(T value) const { return reduced(value, Reduce::Max); }

    /* Of values of any type, merged in the order of ranks on each: for few and short ones. Collective. */
    template <class T, class Merge> T all_reduce(const T &value, Merge merge) const {
        const std::vector<unsigned char> mine = to_bytes(value);
        const std::vector<std::size_t> lengths = job_->allgather<std::size_t>(mine.size());
        std::size_t sum = 0;
        for (const std::size_t length : lengths)
            sum += length;
        std::vector<unsigned char> all(sum + 1);
        check(trihop_allgatherv(job_->get(), mine.empty() ? all.data() : mine.data(), mine.size(), all.data(), lengths.data()));
        T merged = from_bytes<T>(all.data(), lengths[0]);
        for (std::size_t rank = 1, at = lengths[0]; rank < lengths.size(); at += lengths[rank++])
            merged = merge(std::move(merged), from_bytes<T>(all.data() + at, lengths[rank]));
        return merged;
    }

    /* What the rank `root` has. Collective. */
    template <class T> T bcast(const T &value, int root) const {
        std::vector<unsigned char> bytes;
        if (rank() == root)
            bytes = to_bytes(value);
        bytes.resize(job_->broadcast<std::size_t>(static_cast<std::uint32_t>(root), bytes.size()));
        if (bytes.empty())
            return from_bytes<T>(nullptr, 0);
        check(trihop_broadcast(job_->get(), static_cast<std::uint32_t>(root), bytes.data(), bytes.size()));
        return from_bytes<T>(bytes.data(), bytes.size());
    }

    /* What handlers find an object of this rank by: see distributed. It lives as long as the comm. Collective. */
    template <class T> pointer<T> make_pointer(T &object);

    /* Standard output and error on rank 0, and nothing elsewhere; with arguments, these as a line. */
    std::ostream &cout0() const { return rank0() ? std::cout : detail::nowhere(); }
    std::ostream &cerr0() const { return rank0() ? std::cerr : detail::nowhere(); }
    template <class A, class... Args> void cout0(const A &first, const Args &...args) const {
        if (rank0())
            print(std::cout, "", first, args...);
    }
    template <class A, class... Args> void cerr0(const A &first, const Args &...args) const {
        if (rank0())
            print(std::cerr, "", first, args...);
    }

    /* A line of this rank, with its number before it. */
    template <class... Args> void cout(const Args &...args) const { print(std::cout, rank(), ": ", args...); }
    template <class... Args> void cerr(const Args &...args) const { print(std::cerr, rank(), ": ", args...); }

    trihop_stats_t stats() const {
        trihop_stats_t counters;
        check(trihop_stream_stats(stream_, &counters, sizeof counters));
        return counters;
    }

private:
    template <class T> friend class pointer;
    template <class T> friend class distributed;

    /* An object that pointers name. */
    struct Object {
        void *address;
        const std::type_info *type;
    };

    /* Bytes of one call, while that is under way: a send that waits calls handlers, which send. */
    class Buffer {
    public:
        explicit Buffer(comm &world) : world_(world) {
            if (world.spare_.empty())
                world.spare_.emplace_back();
            bytes_ = std::move(world.spare_.back());
            world.spare_.pop_back();
            bytes_.clear();
        }
        ~Buffer() {
            if (bytes_.capacity() <= kept_bytes)
                world_.spare_.push_back(std::move(bytes_));
        }
        Buffer(const Buffer &) = delete;

        std::vector<unsigned char> &bytes() noexcept { return bytes_; }

    private:
        static constexpr std::size_t kept_bytes = 1 << 20;

        comm &world_;
        std::vector<unsigned char> bytes_;
    };

    explicit comm(std::unique_ptr<Job> job) : job_(std::move(job)) {
        const detail::Functions &functions = detail::Functions::all();
        if (!all_have(functions.size(), functions.hash()))
            throw Error(TRIHOP_ERR_MISMATCH, "ranks run different programs: this one sends " + std::to_string(functions.size()) +
                                                 " functions with the hash " + std::to_string(functions.hash()) +
                                                 ", and another one others: start one executable on all ranks");
        spare_.reserve(16);
        check(trihop_stream_open_runs(job_->get(), "trihop::async", nullptr, on_run, this, &stream_));
    }

    template <class F, class... Args> std::uint32_t pack(std::vector<unsigned char> &bytes, const Args &...args) {
        const detail::Function &function = detail::Call<F, detail::stored_t<Args>...>::function;
        if (function.number == detail::Function::unknown)
            throw Error(TRIHOP_ERR_MISUSE, std::string("the function ") + function.name +
                                               " was loaded after the first comm was made: load libraries before");
        Writer writer(bytes);
        writer(detail::stored<std::remove_cv_t<Args>>::of(args)...);
        return function.number;
    }

    static void on_run(void *context, const trihop_message_t *run) noexcept {
        comm &self = *static_cast<comm *>(context);
        trihop_message_t record;
        while (trihop_message_next(run, &record))
            self.call(record);
    }

    void call(const trihop_message_t &record) noexcept {
        if (failure_ != nullptr)
            return;
        try {
            const detail::Function *function = detail::Functions::all()[record.kind];
            if (function == nullptr)
                throw BadBytes("rank " + std::to_string(record.source) + " has sent function " +
                               std::to_string(record.kind) + ", which there is not");
            Reader reader(record.bytes, record.length, this);
            function->run(*this, reader);
        } catch (...) {
            failure_ = std::current_exception();
        }
    }

    void rethrow() {
        if (failure_ != nullptr)
            trihop::detail::throw_again(std::exchange(failure_, nullptr));
    }

    bool local_progress_moves() {
        const bool moved = job_->poll();
        rethrow();
        return moved;
    }

    template <class T> T reduced(T value, Reduce how) const {
        static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8, "a number of 64 bits at most; others by all_reduce(value, merge)");
        if constexpr (std::is_floating_point_v<T>)
            return static_cast<T>(job_->allreduce(static_cast<double>(value), how));
        else if constexpr (std::is_signed_v<T>)
            return static_cast<T>(job_->allreduce(static_cast<std::int64_t>(value), how));
        else
            return static_cast<T>(job_->allreduce(static_cast<std::uint64_t>(value), how));
    }

    template <class... Args> static void print(std::ostream &to, const Args &...args) {
        std::ostringstream line;
        (line << ... << args) << '\n';
        to << line.str() << std::flush;
    }

    /* Whether all ranks say the same two numbers. */
    bool all_have(std::uint64_t first, std::uint64_t second) const {
        /* The least of each, and of what turns it round. */
        std::uint64_t numbers[4] = {first, second, ~first, ~second};
        job_->allreduce(numbers, 4, Reduce::Min);
        return numbers[0] == ~numbers[2] && numbers[1] == ~numbers[3];
    }

    /* All ranks call it in the same order, and have the same number. */
    std::uint64_t keep(void *address, const std::type_info &type) {
        const std::uint64_t number = objects_.size();
        objects_.push_back({address, &type});
        if (!all_have(number, detail::hash_of(type.name()))) {
            objects_.pop_back();
            throw Error(TRIHOP_ERR_MISMATCH, "ranks make objects that handlers find in another order, or of other types, or not "
                                             "all of them: number " + std::to_string(number) + " is a " + type.name() + " here");
        }
        return number;
    }

    trihop::detail::Scope scope_;
    trihop_stream_t *stream_ = nullptr;
    std::exception_ptr failure_;
    std::vector<std::vector<unsigned char>> spare_;
    std::vector<Object> objects_;
    std::unique_ptr<Job> job_; /* goes first: until it has ended, handlers use the others */
};

/* Names an object that each rank has one of. It is sent as an argument; a handler finds the object of its own rank there. */
template <class T> class pointer {
public:
    pointer() = default;

    T &operator*() const noexcept { return *object_; }
    T *operator->() const noexcept { return object_; }
    T *get() const noexcept { return object_; }
    explicit operator bool() const noexcept { return object_ != nullptr; }

    void serialize(Writer &writer) { writer.count(number_); }

    void serialize(Reader &reader) {
        number_ = reader.count();
        const auto *world = static_cast<comm *>(reader.context());
        if (world == nullptr)
            throw BadBytes("a pointer is read outside of a handler");
        if (number_ >= world->objects_.size() || *world->objects_[number_].type != typeid(T) ||
            world->objects_[number_].address == nullptr)
            throw BadBytes("object " + std::to_string(number_) + " is not, or no longer, a " + typeid(T).name() +
                           " on this rank");
        object_ = static_cast<T *>(world->objects_[number_].address);
    }

private:
    friend class comm;
    template <class U> friend class distributed;

    std::uint64_t number_ = ~std::uint64_t{0}; /* of nothing */
    T *object_ = nullptr;
};

template <class T> pointer<T> comm::make_pointer(T &object) {
    pointer<T> made;
    made.number_ = keep(&object, typeid(T));
    made.object_ = &object;
    return made;
}

/* An object of each rank, which handlers reach without a global variable: give it as an argument, and the handler takes a
 * `pointer<T>`. It is made, and goes, on all ranks in one order; its end waits as comm::barrier() does. */
template <class T> class distributed {
public:
    template <class... Args>
    explicit distributed(comm &world, Args &&...args)
        : world_(world), object_(std::make_unique<T>(std::forward<Args>(args)...)), pointer_(world.make_pointer(*object_)) {}

    distributed(const distributed &) = delete;
    distributed &operator=(const distributed &) = delete;

    ~distributed() {
        if (!scope_.is_left_by_exception()) {
            const trihop_status_t status = trihop_stream_fence(world_.stream_); /* a failure stays for the comm */
            if (status != TRIHOP_OK)
                std::fprintf(stderr, "trihop::async: the end of an object: %s\n", trihop_last_error());
        }
        world_.objects_[pointer_.number_].address = nullptr;
    }

    T &operator*() const noexcept { return *object_; }
    T *operator->() const noexcept { return object_.get(); }
    const pointer<T> &get() const noexcept { return pointer_; }
    comm &world() const noexcept { return world_; }

private:
    trihop::detail::Scope scope_;
    comm &world_;
    std::unique_ptr<T> object_;
    pointer<T> pointer_;
};

} // namespace trihop::async

#endif /* TRIHOP_ASYNC_HPP */
