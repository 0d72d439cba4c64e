/*
 * trihop for C++17: the interface of trihop.h with types, exceptions and destructors. Everything here is inline; a program
 * links the same library.
 *
 *   trihop::Job job;
 *   std::vector<std::uint64_t> table(1000);
 *   trihop::Stream<std::uint64_t> updates(job, "updates", [&](std::uint64_t place) { table[place]++; });
 *   for (std::uint64_t n = 0; n < 10000; n++)
 *       updates.push(n % job.size(), n % table.size());
 *   updates.round();
 *
 * Failures are thrown as trihop::Error. What a handler throws is thrown again by the next fence, round, wait or close of its
 * stream (a destructor prints that there was something); what comes for the handler until then is dropped. A stream that is
 * left by an exception calls its handler no more, and is closed with its job. An exception that leaves the scope of a job ends the whole job: other ranks may
 * be waiting for this one.
 *
 * Threads are as trihop.h says of the functions behind. Objects are moved, not copied.
 */
#ifndef TRIHOP_HPP
#define TRIHOP_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <trihop.h>

namespace trihop {

/* What a call failed with: its status, and the whole sentence. */
class Error : public std::runtime_error {
public:
    Error(trihop_status_t status, const std::string &what) : std::runtime_error(what), status_(status) {}

    trihop_status_t status() const noexcept { return status_; }

private:
    trihop_status_t status_;
};

/* Throws what a call of trihop.h says, unless it is done. */
inline void check(trihop_status_t status) {
    if (status != TRIHOP_OK)
        throw Error(status, trihop_last_error());
}

/* As check, for calls that give way: false where there is no room now, or nothing to be had. */
inline bool try_check(trihop_status_t status) {
    if (status == TRIHOP_ERR_WOULD_BLOCK)
        return false;
    check(status);
    return true;
}

/* Where the engine of a job runs: see trihop_seat_t. */
enum class Seat : std::int32_t { Threaded = TRIHOP_THREADED, Inline = TRIHOP_INLINE };

/* How values of all ranks become one. */
enum class Reduce : std::int32_t {
    Sum = TRIHOP_SUM,
    Min = TRIHOP_MIN,
    Max = TRIHOP_MAX,
    Xor = TRIHOP_XOR,
    And = TRIHOP_AND,
    Or = TRIHOP_OR
};

/* How a step of a stream ends: see trihop_end_t. */
enum class End : std::int32_t { Round = TRIHOP_ROUND, Fence = TRIHOP_FENCE };

/* Whose contributors end a step: see trihop_contributors_t. */
enum class Contributors : std::int32_t {
    Local = TRIHOP_LOCAL_CONTRIBUTORS,
    All = TRIHOP_ALL_CONTRIBUTORS
};

/* What a step has beside its contributors: see trihop_step_options_t. */
struct StepOptions {
    /* The stream's place among others while the step lasts, 0 to 255; -1 for that of its options. */
    int priority = -1;
    /* Called once, before begin_step or start returns, when what this rank pushes counts. What it throws, these throw; the
     * step has begun all the same. */
    std::function<void()> at_start;
    /* Called once, when the step is over for this rank. What it throws is thrown as what a handler throws. */
    std::function<void()> at_end;
};

/* Which queues a flush empties: see trihop_queues_t. */
enum class Queues : std::int32_t {
    Origin = TRIHOP_ORIGIN_QUEUES,
    Remote = TRIHOP_REMOTE_QUEUES,
    Relay = TRIHOP_RELAY_QUEUES,
    Delivery = TRIHOP_DELIVERY_QUEUE
};

/* Options of a job, or of its streams: those of the environment, each with the name of its row in docs/OPTIONS.md. */
class Options {
public:
    Options() { check(trihop_options_init(&options_, sizeof options_)); }

    Options &set(const char *name, const std::string &value) {
        check(trihop_options_set(&options_, name, value.c_str()));
        return *this;
    }

    const trihop_options_t *get() const noexcept { return &options_; }

private:
    trihop_options_t options_;
};

namespace detail {

/* Whether a scope that was entered at a moment is being left by an exception. */
class Scope {
public:
    bool is_left_by_exception() const noexcept { return std::uncaught_exceptions() > at_entry_; }

private:
    int at_entry_ = std::uncaught_exceptions();
};

/* Whether a call that closes something has left it open, with its handler. */
inline bool is_open_after(trihop_status_t status) noexcept {
    return status == TRIHOP_ERR_NESTED || status == TRIHOP_ERR_MISUSE;
}

/* What an exception says. */
inline std::string text_of(const std::exception_ptr &failure) {
    try {
        std::rethrow_exception(failure);
    } catch (const std::exception &error) {
        return error.what();
    } catch (...) {
        return "what is no std::exception";
    }
}

/* What was thrown again last on this thread: a job that ends by an exception says so, which itself cannot be asked then. */
inline std::string &thrown_again() {
    thread_local std::string text;
    return text;
}

/* Throws what was kept, of a handler for instance. */
[[noreturn]] inline void throw_again(const std::exception_ptr &failure) {
    thrown_again() = text_of(failure);
    std::rethrow_exception(failure);
}

/* A handler, and what it has thrown. Calls, and looks at what they have left, one at a time. */
class HandlerBase {
public:
    virtual ~HandlerBase() = default;

    /* Throws what the handler has thrown, once. */
    void rethrow() {
        if (const std::exception_ptr failure = take_failure())
            throw_again(failure);
    }

    /* Where it has thrown what nobody can catch any more, says so. */
    void say_thrown(const char *who, const char *of) {
        if (const std::exception_ptr failure = take_failure())
            std::fprintf(stderr, "trihop: %s has thrown, and its %s was closed before anybody asked: %s\n", who, of,
                         text_of(failure).c_str());
    }

    /* The handler is called no more once this has returned: what it refers to may go. */
    void drop() {
        const std::lock_guard<std::recursive_mutex> lock(mutex_);
        is_dropped_ = true;
    }

protected:
    template <class Call> void guarded(Call call, bool goes_on = false) noexcept {
        const std::lock_guard<std::recursive_mutex> lock(mutex_);
        if (is_dropped_ || (failure_ && !goes_on))
            return;
        try {
            call();
        } catch (...) {
            if (!failure_)
                failure_ = std::current_exception();
        }
    }

private:
    std::exception_ptr take_failure() {
        const std::lock_guard<std::recursive_mutex> lock(mutex_);
        return std::exchange(failure_, nullptr);
    }

    std::recursive_mutex mutex_;
    std::exception_ptr failure_;
    bool is_dropped_ = false;
};

/* What is called at the ends of steps of a stream. */
class StepCalls final : public HandlerBase {
public:
    struct Call {
        StepCalls *of;
        std::function<void()> function;
        /* What is called at the start, and its failure's place: of a step that ends by itself. */
        const std::function<void()> *at_start;
        std::exception_ptr *failure;
    };

    /* One that is to come. */
    Call *add(std::function<void()> function) {
        const std::lock_guard<std::mutex> lock(kept_);
        calls_.push_back(std::make_unique<Call>(Call{this, std::move(function), nullptr, nullptr}));
        return calls_.back().get();
    }

    /* It comes now, or not at all. */
    std::function<void()> take(const Call *call) {
        const std::lock_guard<std::mutex> lock(kept_);
        std::function<void()> function;
        for (auto at = calls_.begin(); at != calls_.end(); ++at)
            if (at->get() == call) {
                function = std::move((*at)->function);
                calls_.erase(at);
                break;
            }
        return function;
    }

    static void on_start(void *context, const trihop_stream_t *) noexcept {
        const Call *call = static_cast<const Call *>(context);
        try {
            (*call->at_start)();
        } catch (...) {
            *call->failure = std::current_exception();
        }
    }

    static void on_end(void *context, const trihop_stream_t *) noexcept {
        const Call *call = static_cast<const Call *>(context);
        StepCalls &self = *call->of;
        const std::function<void()> function = self.take(call);
        self.guarded(function);
    }

private:
    std::mutex kept_;
    std::vector<std::unique_ptr<Call>> calls_;
};

/* What the steps of a stream or an array call. */
class Steps {
public:
    /* Begins one that contributors end, by `begin`, which takes its options and returns a status. */
    template <class Begin>
    void begin(Contributors of, std::uint64_t count, StepOptions options, Begin begin) {
        trihop_step_options_t step = with_priority(options);
        step.of = static_cast<std::int32_t>(of);
        step.count = count;
        StepCalls::Call *call = nullptr;
        if (options.at_end)
            call = keep(step, std::move(options.at_end));
        const trihop_status_t status = begin(&step);
        if (status != TRIHOP_OK && call != nullptr)
            calls_->take(call);
        check(status);
        if (options.at_start)
            options.at_start();
    }

    /* Starts one that ends by itself, by `start`, as above. */
    template <class Start> void start(StepOptions options, Start start) {
        trihop_step_options_t step = with_priority(options);
        const bool has_end = static_cast<bool>(options.at_end);
        StepCalls::Call *call = keep(step, std::move(options.at_end));
        if (!has_end)
            step.at_end = nullptr;
        std::exception_ptr failure;
        if (options.at_start) {
            call->at_start = &options.at_start;
            call->failure = &failure;
            step.at_start = StepCalls::on_start;
        }
        const trihop_status_t status = start(&step);
        if (status != TRIHOP_OK || !has_end)
            calls_->take(call);
        if (failure)
            throw_again(failure);
        check(status);
    }

    void say_thrown(const char *of) {
        if (calls_)
            calls_->say_thrown("a call of a step", of);
    }

    void rethrow() {
        if (calls_)
            calls_->rethrow();
    }

    /* None is made any more, and what would be stays where it is. */
    void leave() {
        if (calls_)
            calls_->drop();
        (void)calls_.release();
    }

private:
    static trihop_step_options_t with_priority(const StepOptions &options) {
        trihop_step_options_t step;
        check(trihop_step_options_init(&step, sizeof step));
        step.priority = options.priority;
        return step;
    }

    /* Has the step call this at its end. */
    StepCalls::Call *keep(trihop_step_options_t &step, std::function<void()> at_end) {
        if (!calls_)
            calls_ = std::make_unique<StepCalls>();
        StepCalls::Call *call = calls_->add(std::move(at_end));
        step.at_end = StepCalls::on_end;
        step.context = call;
        return call;
    }

    std::unique_ptr<StepCalls> calls_;
};

template <class In, class F> class Handler final : public HandlerBase {
public:
    explicit Handler(F handler) : handler_(std::move(handler)) {}

    static void on_message(void *context, const trihop_message_t *message) noexcept {
        auto &self = *static_cast<Handler *>(context);
        self.guarded([&] { In::hand_to(self.handler_, message); });
    }

private:
    F handler_;
};

} // namespace detail

/*
 * Processes that know each other already, inside MPI for instance: this one is number `rank` of `size`, on the node with
 * label `node`; see trihop_init_custom, and trihop_minirank_init_custom for what threads `allgather` is called on. A job of
 * theirs is not ended by trihop where a rank fails, by an exception for instance: the program does so, with MPI_Abort.
 */
struct Known {
    Known(std::uint32_t own, std::uint32_t all, std::uint64_t label, trihop_allgather_t call, void *of_call) noexcept
        : rank(own), size(all), node(label), allgather(call), context(of_call) {}

    std::uint32_t rank;
    std::uint32_t size;
    std::uint64_t node;
    trihop_allgather_t allgather;
    void *context;
};

/* The ranks that this process hosts: see trihop_miniranks_t. Each thread makes a Job of one of them. */
class MiniRanks {
public:
    /* So many, or as many as TRIHOP_MINIS_PER_RANK says. */
    explicit MiniRanks(std::uint32_t ranks = 0) { check(trihop_minirank_init(ranks, nullptr, &miniranks_)); }

    MiniRanks(std::uint32_t ranks, const Options &options) {
        check(trihop_minirank_init(ranks, options.get(), &miniranks_));
    }

    MiniRanks(std::uint32_t ranks, const Known &known) { start(ranks, known, nullptr); }

    MiniRanks(std::uint32_t ranks, const Known &known, const Options &options) { start(ranks, known, options.get()); }

    MiniRanks(MiniRanks &&other) noexcept : miniranks_(std::exchange(other.miniranks_, nullptr)) {}
    MiniRanks &operator=(MiniRanks &&) = delete;

    /* Waits until all ranks of this process have left the job. */
    ~MiniRanks() {
        if (miniranks_ != nullptr && trihop_minirank_finalize(miniranks_) != TRIHOP_OK)
            std::fprintf(stderr, "trihop_minirank_finalize: %s\n", trihop_last_error());
    }

    /* As the destructor, with the failure thrown. */
    void finish() {
        if (miniranks_ == nullptr)
            return;
        const trihop_status_t status = trihop_minirank_finalize(miniranks_);
        if (status != TRIHOP_ERR_MISUSE) // else they are still there
            miniranks_ = nullptr;
        check(status);
    }

    trihop_miniranks_t *get() const noexcept { return miniranks_; }
    std::uint32_t count() const { return trihop_minirank_count(miniranks_); }

private:
    void start(std::uint32_t ranks, const Known &known, const trihop_options_t *options) {
        check(trihop_minirank_init_custom(ranks, known.rank, known.size, known.node, known.allgather, known.context,
                                          options, &miniranks_));
    }

    trihop_miniranks_t *miniranks_ = nullptr;
};

/* One rank's part of a job. */
class Job {
public:
    explicit Job(Seat seat = Seat::Threaded) { check(trihop_init(static_cast<std::int32_t>(seat), nullptr, &job_)); }

    Job(Seat seat, const Options &options) { check(trihop_init(static_cast<std::int32_t>(seat), options.get(), &job_)); }

    explicit Job(const Known &known, Seat seat = Seat::Threaded) { start(known, seat, nullptr); }

    Job(const Known &known, Seat seat, const Options &options) { start(known, seat, options.get()); }

    /* That of a mini-rank, which stays with the thread that calls. */
    Job(const MiniRanks &miniranks, std::uint32_t index) {
        check(trihop_minirank_start(miniranks.get(), index, &job_));
    }

    Job(Job &&other) noexcept : scope_(other.scope_), job_(std::exchange(other.job_, nullptr)) {}
    Job &operator=(Job &&) = delete;

    /* Leaves the job, which is collective. */
    ~Job() {
        if (job_ == nullptr)
            return;
        if (scope_.is_left_by_exception()) {
            std::string why = "an exception left the scope of the job";
            if (const std::string &thrown = detail::thrown_again(); !thrown.empty())
                why += "; what trihop called here threw last: " + thrown;
            if (const char *last = trihop_last_error(); last != nullptr && *last != 0)
                why += std::string("; the last error of trihop here: ") + last;
            trihop_abort(job_, EXIT_FAILURE, why.c_str());
            return; /* streams and handlers may still be in use */
        }
        if (trihop_finalize(job_) != TRIHOP_OK)
            std::fprintf(stderr, "trihop_finalize: %s\n", trihop_last_error());
    }

    /* As the destructor, with the failure thrown. */
    void finish() {
        if (job_ == nullptr)
            return;
        const trihop_status_t status = trihop_finalize(job_);
        if (!detail::is_open_after(status))
            job_ = nullptr;
        check(status);
    }

    trihop_job_t *get() const noexcept { return job_; }
    std::uint32_t rank() const { return trihop_rank(job_); }
    std::uint32_t size() const { return trihop_size(job_); }
    std::uint32_t node() const { return trihop_node(job_); }
    std::uint32_t nodes() const { return trihop_nodes(job_); }
    std::uint32_t local_rank() const { return trihop_local_rank(job_); }
    std::uint32_t local_size() const { return trihop_local_size(job_); }

    /* This rank's number among those of its process: see trihop_miniranks_t. */
    std::uint32_t index() const { return trihop_minirank_index(job_); }

    void barrier() const { check(trihop_barrier(job_)); }

    /* Has the job go on without ranks that are gone: see trihop_survive. */
    void survive() const { check(trihop_survive(job_)); }

    /* Ranks that this one cannot reach any more: see trihop_lost. */
    std::vector<std::uint32_t> lost() const {
        std::size_t count = 0;
        check(trihop_lost(job_, nullptr, 0, &count));
        std::vector<std::uint32_t> ranks(count);
        check(trihop_lost(job_, ranks.data(), ranks.size(), &count));
        if (count < ranks.size()) ranks.resize(count);
        return ranks;
    }

    /* A barrier of the ranks of this process alone. */
    void barrier_of_process() const { check(trihop_minirank_barrier(job_)); }

    /* Waits until nothing is on its way on any stream: see trihop_fence. */
    void fence() const { check(trihop_fence(job_)); }

    /* Starts such a fence, and does not wait: see trihop_start_fence. */
    void start_fence() const { check(trihop_start_fence(job_)); }

    /* One round of progress, and whether the fence that was started is over. */
    bool test_fence() const {
        int is_over = 0;
        check(trihop_test_fence(job_, &is_over));
        return is_over != 0;
    }

    /* Waits until the fence that was started is over. */
    void wait_fence() const { check(trihop_wait_fence(job_)); }

    /* A round of progress; whether anything moved. */
    bool poll() const {
        int moved = 0;
        check(trihop_poll(job_, &moved));
        return moved != 0;
    }

    void abort(int exit_status, const char *why) const { check(trihop_abort(job_, exit_status, why)); }

    /* The reduction of all ranks' values: std::uint64_t, std::int64_t or double. */
    template <class T> T allreduce(T value, Reduce reduce = Reduce::Sum) const {
        allreduce(&value, 1, reduce);
        return value;
    }

    template <class T> void allreduce(T *values, std::size_t count, Reduce reduce = Reduce::Sum) const {
        check_number<T>();
        const auto how = static_cast<std::int32_t>(reduce);
        if constexpr (std::is_same_v<T, double>)
            check(trihop_allreduce_f64(job_, how, values, count));
        else if constexpr (std::is_signed_v<T>)
            check(trihop_allreduce_i64(job_, how, reinterpret_cast<std::int64_t *>(values), count));
        else
            check(trihop_allreduce(job_, how, reinterpret_cast<std::uint64_t *>(values), count));
    }

    /* The reduction of the values of the ranks before this one. */
    template <class T> T exscan(T value, Reduce reduce = Reduce::Sum) const {
        check_number<T>();
        const auto how = static_cast<std::int32_t>(reduce);
        if constexpr (std::is_same_v<T, double>)
            check(trihop_exscan_f64(job_, how, &value, 1));
        else if constexpr (std::is_signed_v<T>)
            check(trihop_exscan_i64(job_, how, reinterpret_cast<std::int64_t *>(&value), 1));
        else
            check(trihop_exscan(job_, how, reinterpret_cast<std::uint64_t *>(&value), 1));
        return value;
    }

    /* What the rank `root` has. */
    template <class T> T broadcast(std::uint32_t root, T value) const {
        static_assert(std::is_trivially_copyable_v<T>, "what is broadcast is copied byte by byte");
        check(trihop_broadcast(job_, root, &value, sizeof value));
        return value;
    }

    /* Every rank's value, by rank. */
    template <class T> std::vector<T> allgather(const T &mine) const {
        static_assert(std::is_trivially_copyable_v<T>, "what is gathered is copied byte by byte");
        std::vector<T> all(size());
        check(trihop_allgather(job_, &mine, sizeof mine, all.data()));
        return all;
    }

    /* The values of all ranks, one rank behind the other, each of which has as many as it likes. How many each has goes to
     * `counts`, unless that is null. */
    template <class T>
    std::vector<T> allgatherv(const std::vector<T> &mine, std::vector<std::size_t> *counts = nullptr) const {
        static_assert(std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>, "what is gathered is copied byte by byte");
        const std::vector<std::size_t> many = allgather(mine.size());
        std::size_t sum = 0;
        std::vector<std::size_t> lengths(many);
        for (std::size_t &length : lengths) {
            sum += length;
            length *= sizeof(T);
        }
        std::vector<T> all(sum);
        check(trihop_allgatherv(job_, mine.data(), mine.size() * sizeof(T), all.data(), lengths.data()));
        if (counts != nullptr)
            *counts = many;
        return all;
    }

private:
    void start(const Known &known, Seat seat, const trihop_options_t *options) {
        check(trihop_init_custom(static_cast<std::int32_t>(seat), known.rank, known.size, known.node, known.allgather,
                                 known.context, options, &job_));
    }

    template <class T> static constexpr void check_number() {
        static_assert(std::is_same_v<T, double> || (std::is_integral_v<T> && sizeof(T) == 8),
                      "values are 64-bit integers or double");
    }

    detail::Scope scope_;
    trihop_job_t *job_ = nullptr;
};

/* Items of one source that came one after the other, while their handler runs. */
template <class T> class Items {
public:
    const T *begin() const noexcept { return static_cast<const T *>(message_->bytes); }
    const T *end() const noexcept { return begin() + size(); }
    const T &operator[](std::size_t at) const noexcept { return begin()[at]; }
    std::size_t size() const noexcept { return message_->count; }
    std::uint32_t source() const noexcept { return message_->source; }
    std::uint32_t rank() const noexcept { return message_->rank; }
    std::uint32_t ranks() const noexcept { return message_->size; }

    /* Sends an item on the same stream. It never waits. */
    void push(std::uint32_t target, const T &item) const { check(trihop_stream_push(message_->stream, target, &item)); }

    /* So many contributors of the stream's step are done. */
    void done(std::uint64_t contributors = 1) const
    {
        check(trihop_stream_done(message_->stream, contributors));
    }

    /* Gives the items to a handler of one after the other, without its source or with it, or of all of them. */
    template <class F> static void hand_to(F &handler, const trihop_message_t *message) {
        const Items items(message);
        if constexpr (std::is_invocable_v<F &, const T &>) {
            for (const T &item : items)
                handler(item);
        } else if constexpr (std::is_invocable_v<F &, const T &, std::uint32_t>) {
            for (const T &item : items)
                handler(item, items.source());
        } else {
            handler(items);
        }
    }

private:
    explicit Items(const trihop_message_t *message) : message_(message) {}

    const trihop_message_t *message_;
};

/* A record, while its handler runs. */
class Record {
public:
    const void *data() const noexcept { return message_->bytes; }
    std::size_t size() const noexcept { return message_->length; }
    std::uint32_t kind() const noexcept { return message_->kind; }
    std::uint32_t source() const noexcept { return message_->source; }
    std::uint32_t rank() const noexcept { return message_->rank; }
    std::uint32_t ranks() const noexcept { return message_->size; }

    /* Sends a record on the same stream. It never waits. */
    void send(std::uint32_t target, std::uint32_t kind, const void *bytes, std::size_t length) const {
        check(trihop_stream_send(message_->stream, target, kind, bytes, length));
    }

    /* So many contributors of the stream's step are done. */
    void done(std::uint64_t contributors = 1) const
    {
        check(trihop_stream_done(message_->stream, contributors));
    }

    template <class F> static void hand_to(F &handler, const trihop_message_t *message) { handler(Record(message)); }

private:
    explicit Record(const trihop_message_t *message) : message_(message) {}

    const trihop_message_t *message_;
};

namespace detail {

/* What streams of items and of records have in common. */
class StreamBase {
public:
    StreamBase(StreamBase &&other) noexcept
        : scope_(other.scope_), handler_(std::move(other.handler_)), steps_(std::move(other.steps_)),
          stream_(std::exchange(other.stream_, nullptr)) {}
    StreamBase &operator=(StreamBase &&) = delete;

    trihop_stream_t *get() const noexcept { return stream_; }

    /* What this rank sends to itself is handled in the call itself: see trihop_stream_own_at_once. */
    void own_at_once() { check(trihop_stream_own_at_once(stream_)); }

    /* See trihop_stream_fence. */
    void fence() { ended(trihop_stream_fence(stream_)); }

    /* See trihop_stream_round. */
    void round() { ended(trihop_stream_round(stream_)); }

    void barrier() { check(trihop_stream_barrier(stream_)); }
    void flush(Queues queues) { check(trihop_stream_flush(stream_, static_cast<std::int32_t>(queues))); }

    /* Starts a round or a fence, and does not wait. */
    void start(End end) { check(trihop_stream_start(stream_, static_cast<std::int32_t>(end))); }

    /* As above, with a priority, and calls: what at_start pushes counts, and at_end may start the next. */
    void start(End end, StepOptions options) {
        steps_.start(std::move(options), [this, end](const trihop_step_options_t *step) {
            return trihop_stream_start_with(stream_, static_cast<std::int32_t>(end), step);
        });
    }

    /* See trihop_stream_begin_step. */
    void begin_step(Contributors of, std::uint64_t count) {
        check(trihop_stream_begin_step(stream_, static_cast<std::int32_t>(of), count));
    }

    /* As above, with a priority, and calls when it begins and when it is over; the latter may begin the next step. */
    void begin_step(Contributors of, std::uint64_t count, StepOptions options) {
        steps_.begin(of, count, std::move(options), [this](const trihop_step_options_t *step) {
            return trihop_stream_begin_step_with(stream_, step);
        });
    }

    /* So many contributors of the step are done; also inside handlers. */
    void done(std::uint64_t contributors = 1) { check(trihop_stream_done(stream_, contributors)); }

    /* One round of progress, and whether what was started is over. */
    bool test() {
        int is_over = 0;
        check(trihop_stream_test(stream_, &is_over));
        return is_over != 0;
    }

    /* Waits until what was started is over. */
    void wait() { ended(trihop_stream_wait(stream_)); }

    trihop_stats_t stats() const {
        trihop_stats_t counters;
        check(trihop_stream_stats(stream_, &counters, sizeof counters));
        return counters;
    }

    /* As the destructor, with the failure thrown. */
    void close() {
        if (stream_ == nullptr)
            return;
        const trihop_status_t status = close_anyhow();
        if (is_open_after(status))
            check(status); /* it goes on */
        stream_ = nullptr;
        ended(status);
    }

protected:
    StreamBase(const Job &job, const char *name, std::size_t item_bytes, const Options *options,
               std::unique_ptr<HandlerBase> handler, trihop_handler_t on_message, void *context)
        : handler_(std::move(handler)) {
        const trihop_options_t *given = options == nullptr ? nullptr : options->get();
        check(trihop_stream_open(job.get(), name, item_bytes, given, on_message, context, &stream_));
    }

    /* Closes the stream, which is collective: its handler is called no more. */
    ~StreamBase() {
        if (stream_ == nullptr)
            return;
        if (scope_.is_left_by_exception()) {
            leave_calls(); /* Closing waits for others, who may not come: the job closes it. */
            return;
        }
        const trihop_status_t status = close_anyhow();
        if (status != TRIHOP_OK)
            std::fprintf(stderr, "trihop_stream_close: %s\n", trihop_last_error());
        if (handler_)
            handler_->say_thrown("a handler", "stream");
        steps_.say_thrown("stream");
        if (is_open_after(status))
            leave_calls(); /* it is still open */
    }

    /* What the handler, or a call at an end, has thrown by the end of a step, and what the call says. */
    void ended(trihop_status_t status) {
        if (handler_)
            handler_->rethrow();
        steps_.rethrow();
        check(status);
    }

private:
    /* Nothing of the program's is called any more, and what would be stays where it is. */
    void leave_calls() {
        if (handler_)
            handler_->drop();
        (void)handler_.release();
        steps_.leave();
    }

    /* What nobody has taken is given up. */
    trihop_status_t close_anyhow() {
        trihop_status_t status = trihop_stream_close(stream_);
        while (status == TRIHOP_ERR_WOULD_BLOCK) {
            trihop_stream_take(stream_, [](void *, const trihop_message_t *) {}, nullptr, nullptr);
            status = trihop_stream_close(stream_);
        }
        return status;
    }

    Scope scope_;
    std::unique_ptr<HandlerBase> handler_;
    Steps steps_;
    trihop_stream_t *stream_ = nullptr;
};

} // namespace detail

/* A stream of items of one type: plain data, aligned to at most 8 bytes. */
template <class T> class Stream : public detail::StreamBase {
    static_assert(std::is_trivially_copyable_v<T>, "items are copied byte by byte");
    static_assert(alignof(T) <= 8, "items are aligned to at most 8 bytes");

public:
    /* Opens it, which is collective. The handler takes `const Items<T> &`, or `const T &` and the source, or `const T &`. */
    template <class F>
    Stream(const Job &job, const char *name, F handler, const Options *options = nullptr)
        : Stream(job, name, new detail::Handler<Items<T>, F>(std::move(handler)), options) {}

    /* Without a handler: items wait for a Conveyor, or for trihop_stream_take. */
    Stream(const Job &job, const char *name, std::nullptr_t = nullptr, const Options *options = nullptr)
        : StreamBase(job, name, sizeof(T), options, nullptr, nullptr, nullptr) {}

    /* Sends an item; waits while there is no room, but not in a handler. */
    void push(std::uint32_t target, const T &item) {
        const trihop_status_t status = trihop_stream_push(get(), target, &item);
        if (status != TRIHOP_OK)
            check(status);
    }

    /* Sends an item if there is room now. */
    bool try_push(std::uint32_t target, const T &item) { return try_check(trihop_stream_try_push(get(), target, &item)); }

    /* Sends items, each to the rank in its place of `targets`: cheaper than a call for each. How many were taken goes to
     * `sent`: all, unless this throws. */
    void extend(const std::uint32_t *targets, const T *items, std::size_t count, std::size_t *sent = nullptr) {
        check(trihop_stream_push_many(get(), targets, items, count, sent));
    }

    /* Sends an item to all ranks, or to all others. */
    void broadcast(const T &item, trihop_broadcast_t to = TRIHOP_TO_EVERYONE) {
        check(trihop_stream_broadcast(get(), 0, &item, sizeof item, static_cast<std::int32_t>(to)));
    }

    /* Whether it was taken: false where there is no room now. */
    bool try_broadcast(const T &item, trihop_broadcast_t to = TRIHOP_TO_EVERYONE) {
        return try_check(trihop_stream_try_broadcast(get(), 0, &item, sizeof item, static_cast<std::int32_t>(to)));
    }

private:
    template <class U> friend class Conveyor;

    /* Of items of another type from now on. */
    explicit Stream(detail::StreamBase &&other) : StreamBase(std::move(other)) {}

    template <class F>
    Stream(const Job &job, const char *name, detail::Handler<Items<T>, F> *handler, const Options *options)
        : StreamBase(job, name, sizeof(T), options, std::unique_ptr<detail::HandlerBase>(handler),
                     detail::Handler<Items<T>, F>::on_message, handler) {}
};

/* A stream of records of any length, each with 32 bits of kind. */
class Shuffle : public detail::StreamBase {
public:
    /* Opens it, which is collective. The handler takes `const Record &`. */
    template <class F>
    Shuffle(const Job &job, const char *name, F handler, const Options *options = nullptr)
        : Shuffle(job, name, new detail::Handler<Record, F>(std::move(handler)), options) {}

    /* Sends a record; waits while there is no room, but not in a handler. */
    void send(std::uint32_t target, std::uint32_t kind, const void *bytes, std::size_t length) {
        const trihop_status_t status = trihop_stream_send(get(), target, kind, bytes, length);
        if (status != TRIHOP_OK)
            check(status);
    }

    /* Sends a record if there is room now. */
    bool try_send(std::uint32_t target, std::uint32_t kind, const void *bytes, std::size_t length) {
        return try_check(trihop_stream_try_send(get(), target, kind, bytes, length));
    }

    /* Sends a record to all ranks, or to all others. */
    void broadcast(std::uint32_t kind, const void *bytes, std::size_t length, trihop_broadcast_t to = TRIHOP_TO_EVERYONE) {
        check(trihop_stream_broadcast(get(), kind, bytes, length, static_cast<std::int32_t>(to)));
    }

    /* Whether it was taken: false where there is no room now. */
    bool try_broadcast(std::uint32_t kind, const void *bytes, std::size_t length, trihop_broadcast_t to = TRIHOP_TO_EVERYONE) {
        return try_check(trihop_stream_try_broadcast(get(), kind, bytes, length, static_cast<std::int32_t>(to)));
    }

private:
    template <class F>
    Shuffle(const Job &job, const char *name, detail::Handler<Record, F> *handler, const Options *options)
        : StreamBase(job, name, 0, options, std::unique_ptr<detail::HandlerBase>(handler),
                     detail::Handler<Record, F>::on_message, handler) {}
};

/* How far a step of a conveyor has come. */
enum class ConveyorState : std::int32_t {
    Working = TRIHOP_WORKING,
    Endgame = TRIHOP_ENDGAME,
    Cleanup = TRIHOP_CLEANUP,
    Complete = TRIHOP_COMPLETE
};

/* A stream by push, pull and advance: see trihop_conveyor_t. */
template <class T> class Conveyor {
public:
    /* Opens its stream, which is collective. */
    Conveyor(const Job &job, const char *name, const Options *options = nullptr) : stream_(job, name, nullptr, options) {
        check(trihop_conveyor_over(stream_.get(), &conveyor_));
    }

    Conveyor(Conveyor &&other) noexcept
        : stream_(std::move(other.stream_)), conveyor_(std::exchange(other.conveyor_, nullptr)) {}
    Conveyor &operator=(Conveyor &&) = delete;

    ~Conveyor() { trihop_conveyor_free(conveyor_); }

    /* Sends an item; false, with nothing taken, where there is no room now. */
    bool push(std::uint32_t target, const T &item) { return try_check(trihop_conveyor_push(conveyor_, target, &item)); }

    /* The next item that is here, until the next call; null where there is none. */
    const T *pull(std::uint32_t *source = nullptr) {
        const void *item = nullptr;
        return try_check(trihop_conveyor_pull(conveyor_, &item, source)) ? static_cast<const T *>(item) : nullptr;
    }

    /* The next pull gives what the last one gave. */
    void unpull() { check(trihop_conveyor_unpull(conveyor_)); }

    /* A round of progress; false once no rank pushes any more and everything was pulled. */
    bool advance(bool is_done) {
        int goes_on = 1;
        check(trihop_conveyor_advance(conveyor_, is_done, &goes_on));
        return goes_on != 0;
    }

    ConveyorState state() const {
        std::int32_t state = 0;
        check(trihop_conveyor_state(conveyor_, &state));
        return static_cast<ConveyorState>(state);
    }

    /* Begins the next step. */
    void reset() { check(trihop_conveyor_reset(conveyor_)); }

    /* Begins the next step with items of another type: of the same on all ranks. */
    template <class U> Conveyor<U> reset_as() && {
        check(trihop_conveyor_reset_to(conveyor_, sizeof(U)));
        return Conveyor<U>(std::move(stream_), std::exchange(conveyor_, nullptr));
    }

private:
    template <class U> friend class Conveyor;

    template <class U>
    Conveyor(Stream<U> &&stream, trihop_conveyor_t *conveyor)
        : stream_(static_cast<detail::StreamBase &&>(stream)), conveyor_(conveyor) {}

    Stream<T> stream_;
    trihop_conveyor_t *conveyor_ = nullptr;
};

/* Items of a stream that are merged at their sender: see trihop_merging_t. */
template <class T, class Key, class Merge> class Merging {
public:
    /* A table of so many items. `key` takes `const T &` and says what it is about, `merge` takes `T &` and joins another one
     * of the same key, `const T &`, to it. Neither throws. */
    Merging(Stream<T> &stream, std::size_t places, Key key, Merge merge)
        : calls_(std::make_unique<Calls>(Calls{std::move(key), std::move(merge)})) {
        check(trihop_merging_over(stream.get(), places, key_of, join, calls_.get(), &merging_));
    }

    Merging(Merging &&other) noexcept
        : calls_(std::move(other.calls_)), merging_(std::exchange(other.merging_, nullptr)) {}
    Merging &operator=(Merging &&) = delete;

    /* Items that are still in the table are given up. */
    ~Merging() { trihop_merging_free(merging_); }

    /* Sends an item, or merges it with one that has not left. */
    void push(std::uint32_t target, const T &item) { check(trihop_merging_push(merging_, target, &item)); }

    /* Lets the items leave that are in the table: before a fence or a round of the stream. Where handlers push, some may stay:
     * see trihop_merging_t. */
    void flush() { check(trihop_merging_flush(merging_)); }

    /* Items that joined another one instead of travelling. */
    std::uint64_t merged() const { return trihop_merging_merged(merging_); }

    /* Items in the table. */
    std::uint64_t held() const { return trihop_merging_held(merging_); }

private:
    struct Calls {
        Key key;
        Merge merge;
    };

    static std::uint64_t key_of(void *context, const void *item) noexcept {
        return static_cast<Calls *>(context)->key(*static_cast<const T *>(item));
    }

    static void join(void *context, void *before, const void *item) noexcept {
        static_cast<Calls *>(context)->merge(*static_cast<T *>(before), *static_cast<const T *>(item));
    }

    std::unique_ptr<Calls> calls_;
    trihop_merging_t *merging_ = nullptr;
};

namespace detail {

/* What answers requests, and what it has thrown. */
template <class Q, class R, class F> class Answer final : public HandlerBase {
public:
    explicit Answer(F answer) : answer_(std::move(answer)) {}

    static void on_request(void *context, std::uint32_t source, const void *request, void *reply) noexcept {
        auto &self = *static_cast<Answer *>(context);
        const auto answer = [&] {
            const Q &question = *static_cast<const Q *>(request);
            if constexpr (std::is_invocable_v<F &, const Q &, std::uint32_t>)
                *static_cast<R *>(reply) = self.answer_(question, source);
            else
                *static_cast<R *>(reply) = self.answer_(question);
        };
        self.guarded(answer, true); /* others wait for the next answers */
    }

private:
    F answer_;
};

} // namespace detail

/* Requests to any rank and their replies, in the order of the requests: see trihop_replies_t. Of inline jobs. */
template <class Q, class R> class Replies {
    static_assert(std::is_trivially_copyable_v<Q> && std::is_trivially_copyable_v<R>,
                  "requests and replies are copied byte by byte");
    static_assert(alignof(Q) <= 8 && alignof(R) <= 8, "requests and replies are aligned to at most 8 bytes");

public:
    /* Opens it, which is collective. `answer` takes `const Q &` and the source, or `const Q &`, and returns an R; where it
     * throws, the reply is zero, and this rank's next pull, fence or close throws the first of that. */
    template <class F> Replies(const Job &job, const char *name, std::size_t most, F answer) {
        using Answer = detail::Answer<Q, R, F>;
        auto owned = std::make_unique<Answer>(std::move(answer));
        check(trihop_replies_open(job.get(), name, sizeof(Q), sizeof(R), most, Answer::on_request, owned.get(), &replies_));
        answer_ = std::move(owned);
    }

    Replies(Replies &&other) noexcept
        : scope_(other.scope_), answer_(std::move(other.answer_)), replies_(std::exchange(other.replies_, nullptr)) {}
    Replies &operator=(Replies &&) = delete;

    /* Closes it, which is collective. */
    ~Replies() {
        if (replies_ == nullptr)
            return;
        if (scope_.is_left_by_exception()) {
            /* Closing waits for others, who may not come: the job closes it. */
            answer_->drop();
            (void)answer_.release();
            return;
        }
        const trihop_status_t status = trihop_replies_close(replies_);
        if (status != TRIHOP_OK)
            std::fprintf(stderr, "trihop_replies_close: %s\n", trihop_last_error());
        answer_->say_thrown("an answer", "stream");
        if (detail::is_open_after(status)) {
            answer_->drop();
            (void)answer_.release(); /* it is still open */
        }
    }

    /* Asks a rank; false, with nothing asked, while there is no room. */
    bool ask(std::uint32_t target, const Q &request) { return try_check(trihop_replies_ask(replies_, target, &request)); }

    /* The reply to the oldest request that has none yet; false where it is not here. Where it throws, no reply is gone. */
    bool pull(R &reply) {
        answer_->rethrow();
        const bool is_here = try_check(trihop_replies_pull(replies_, &reply));
        if (!is_here)
            answer_->rethrow();
        return is_here;
    }

    /* Requests whose replies have not been pulled. */
    std::size_t outstanding() const { return trihop_replies_outstanding(replies_); }

    /* Afterwards all replies are here, to be pulled. */
    void fence() {
        const trihop_status_t status = trihop_replies_fence(replies_);
        answer_->rethrow();
        check(status);
    }

    /* As the destructor, with the failure thrown. */
    void close() {
        if (replies_ == nullptr)
            return;
        const trihop_status_t status = trihop_replies_close(replies_);
        if (detail::is_open_after(status))
            check(status); /* it goes on */
        replies_ = nullptr;
        answer_->rethrow();
        check(status);
    }

private:
    detail::Scope scope_;
    std::unique_ptr<detail::HandlerBase> answer_;
    trihop_replies_t *replies_ = nullptr;
};

/* What an element is packed into. */
class Packer {
public:
    explicit Packer(trihop_packer_t *packer) : packer_(packer) {}

    void append(const void *bytes, std::size_t length) { check(trihop_pack(packer_, bytes, length)); }

    template <class T> void append(const T &value) {
        static_assert(std::is_trivially_copyable_v<T>, "what is packed is copied byte by byte");
        append(&value, sizeof value);
    }

private:
    trihop_packer_t *packer_;
};

/* How an element of an Array becomes bytes and back, so that it can move: plain data is copied. Other
 * types specialise it. */
template <class Element> struct Packing {
    static_assert(std::is_trivially_copyable_v<Element>, "specialise trihop::Packing for what is no plain data");

    static void pack(const Element &element, Packer &packer) { packer.append(element); }

    /* The bytes that were packed, aligned to 8. */
    static Element unpack(const void *bytes, std::size_t length) {
        if (length != sizeof(Element))
            throw std::length_error("an element has come with another size");
        Element element;
        std::memcpy(static_cast<void *>(&element), bytes, length);
        return element;
    }
};

/* What the handler of an Array may do, while it runs. */
template <class Item> class ArrayCall {
public:
    explicit ArrayCall(const trihop_array_item_t *item) : item_(item) {}

    /* Key of the element. */
    std::uint64_t key() const noexcept { return item_->key; }
    std::uint32_t rank() const noexcept { return item_->rank; }
    std::uint32_t ranks() const noexcept { return item_->size; }

    /* Sends an item to the element of a key. It never waits. */
    void push(std::uint64_t key, const Item &item) const {
        check(trihop_array_push(item_->array, key, &item, sizeof item));
    }

    /* Sends an item to every element. It never waits. */
    void broadcast(const Item &item) const { check(trihop_array_broadcast(item_->array, &item, sizeof item)); }

    /* Has the element move to another rank once the handler has returned. */
    void migrate(std::uint32_t to) const { check(trihop_array_migrate(item_->array, item_->key, to)); }

    /* So many elements are done in the step. */
    void done(std::uint64_t elements = 1) const { check(trihop_array_done(item_->array, elements)); }

private:
    const trihop_array_item_t *item_;
};

namespace detail {

/* What an array calls, and what that has thrown. */
template <class Element, class Item, class F, class Owner> class ArrayCalls final : public HandlerBase {
public:
    ArrayCalls(F handler, Owner owner) : handler_(std::move(handler)), owner_(std::move(owner)) {}

    trihop_array_calls_t calls() {
        trihop_array_calls_t calls = {};
        calls.size = sizeof calls;
        calls.handler = on_item;
        calls.context = this;
        if constexpr (!std::is_null_pointer_v<Owner>)
            calls.owner = owner_of;
        calls.pack = pack;
        calls.unpack = unpack;
        calls.free = free;
        return calls;
    }

private:
    static void on_item(void *context, const trihop_array_item_t *arrived) noexcept {
        auto &self = *static_cast<ArrayCalls *>(context);
        self.guarded([&] {
            if (arrived->length != sizeof(Item))
                throw std::length_error("an item has come with another size");
            Element &element = *static_cast<Element *>(arrived->element);
            const Item &item = *static_cast<const Item *>(arrived->bytes);
            const ArrayCall<Item> call(arrived);
            if constexpr (std::is_invocable_v<F &, Element &, const Item &, const ArrayCall<Item> &>)
                self.handler_(element, item, call);
            else
                self.handler_(element, item);
        });
    }

    static std::uint32_t owner_of(void *context, std::uint64_t key) noexcept {
        return static_cast<const ArrayCalls *>(context)->owner_(key);
    }

    static std::int32_t pack(void *context, const void *element, trihop_packer_t *into) noexcept {
        auto &self = *static_cast<ArrayCalls *>(context);
        std::int32_t status = -1;
        self.guarded(
            [&] {
                Packer packer(into);
                Packing<Element>::pack(*static_cast<const Element *>(element), packer);
                status = 0;
            },
            true);
        return status;
    }

    static void *unpack(void *context, const void *bytes, std::size_t length) noexcept {
        auto &self = *static_cast<ArrayCalls *>(context);
        void *element = nullptr;
        self.guarded([&] { element = new Element(Packing<Element>::unpack(bytes, length)); }, true);
        return element;
    }

    static void free(void *, void *element) noexcept { delete static_cast<Element *>(element); }

    F handler_;
    Owner owner_;
};

} // namespace detail

/* Elements with keys, to which items are sent by key, and which may move: see trihop_array_t. Items
 * are plain data, elements anything that has a Packing. */
template <class Element, class Item> class Array {
    static_assert(std::is_trivially_copyable_v<Item>, "items are copied byte by byte");
    static_assert(alignof(Item) <= 8, "items are aligned to at most 8 bytes");

public:
    /* Opens it, without elements, which is collective. The handler takes `Element &` and
     * `const Item &`, and may take `const ArrayCall<Item> &` too. `owner` takes a key and returns the
     * rank that knows where its element is, without an exception; null: the ranks in turn. */
    template <class F, class Owner = std::nullptr_t>
    Array(const Job &job, const char *name, F handler, Owner owner = nullptr, const Options *options = nullptr) {
        using Calls = detail::ArrayCalls<Element, Item, F, Owner>;
        auto owned = std::make_unique<Calls>(std::move(handler), std::move(owner));
        const trihop_array_calls_t calls = owned->calls();
        const trihop_options_t *given = options == nullptr ? nullptr : options->get();
        check(trihop_array_open(job.get(), name, given, &calls, &array_));
        calls_ = std::move(owned);
    }

    Array(Array &&other) noexcept
        : scope_(other.scope_), calls_(std::move(other.calls_)), steps_(std::move(other.steps_)),
          array_(std::exchange(other.array_, nullptr)) {}
    Array &operator=(Array &&) = delete;

    /* Closes it, which is collective; elements that are here are destroyed. */
    ~Array() {
        if (array_ == nullptr)
            return;
        if (scope_.is_left_by_exception()) {
            leave_calls(); /* Closing waits for others, who may not come: the job closes it. */
            return;
        }
        const trihop_status_t status = trihop_array_close(array_);
        if (status != TRIHOP_OK)
            std::fprintf(stderr, "trihop_array_close: %s\n", trihop_last_error());
        calls_->say_thrown("a handler", "array");
        steps_.say_thrown("array");
        if (detail::is_open_after(status))
            leave_calls(); /* it is still open */
    }

    trihop_array_t *get() const noexcept { return array_; }

    /* What this rank pushes to elements that it owns is handled in the push itself: see trihop_array_own_at_once. */
    void own_at_once() { check(trihop_array_own_at_once(array_)); }

    /* Puts an element here, which everybody sends to after the next fence. */
    void insert(std::uint64_t key, Element element) {
        auto owned = std::make_unique<Element>(std::move(element));
        check(trihop_array_insert(array_, key, owned.get()));
        (void)owned.release();
    }

    /* Takes an element that is here away; none where it is not. */
    std::optional<Element> remove(std::uint64_t key) {
        void *element = nullptr;
        check(trihop_array_remove(array_, key, &element));
        const std::unique_ptr<Element> owned(static_cast<Element *>(element));
        return owned ? std::optional<Element>(std::move(*owned)) : std::nullopt;
    }

    /* Sends an item to the element of a key; waits while there is no room, but not in a handler. */
    void push(std::uint64_t key, const Item &item) { check(trihop_array_push(array_, key, &item, sizeof item)); }

    /* Sends an item if there is room now. */
    bool try_push(std::uint64_t key, const Item &item) {
        return try_check(trihop_array_try_push(array_, key, &item, sizeof item));
    }

    /* Sends items, each to the element of the key in its place of `keys`. How many were taken goes to `sent`: all, unless this
     * throws. */
    void extend(const std::uint64_t *keys, const Item *items, std::size_t count, std::size_t *sent = nullptr) {
        check(trihop_array_push_many(array_, keys, items, sizeof(Item), count, sent));
    }

    /* Sends an item to every element. */
    void broadcast(const Item &item) { check(trihop_array_broadcast(array_, &item, sizeof item)); }

    /* Has an element that is here move to another rank. What its packing throws is thrown here. */
    void migrate(std::uint64_t key, std::uint32_t to) { ended(trihop_array_migrate(array_, key, to)); }

    /* Calls `visit` with the key and the element, `Element &`, of all that are here. The first
     * exception is thrown on, behind the last element. */
    template <class F> void each(F visit) {
        Visiting<F> visiting{visit, nullptr};
        check(trihop_array_each(array_, Visiting<F>::on_element, &visiting));
        if (visiting.failure)
            detail::throw_again(visiting.failure);
    }

    /* Elements that are here. */
    std::size_t count() const {
        std::size_t count = 0;
        check(trihop_array_count(array_, &count));
        return count;
    }

    /* Items that came here for elements elsewhere, and were sent on. */
    std::uint64_t late() const {
        std::uint64_t late = 0;
        check(trihop_array_late(array_, &late));
        return late;
    }

    /* See trihop_array_fence. */
    void fence() { ended(trihop_array_fence(array_)); }

    /* Starts a fence, and does not wait; test and wait say when it is over. */
    void start_fence() { check(trihop_array_start_fence(array_)); }

    /* As above, with a priority, and calls: what at_start pushes counts, and at_end may start the next. */
    void start_fence(StepOptions options) {
        steps_.start(std::move(options), [this](const trihop_step_options_t *step) {
            return trihop_array_start_fence_with(array_, step);
        });
    }

    /* See trihop_array_begin_step. */
    void begin_step() { check(trihop_array_begin_step(array_)); }

    /* Of contributors that the program counts, with a priority, and calls when it begins and when it is over: see
     * trihop_array_begin_step_with. */
    void begin_step(Contributors of, std::uint64_t count, StepOptions options = {}) {
        steps_.begin(of, count, std::move(options), [this](const trihop_step_options_t *step) {
            return trihop_array_begin_step_with(array_, step);
        });
    }

    /* So many elements are done in the step. */
    void done(std::uint64_t elements = 1) { check(trihop_array_done(array_, elements)); }

    /* One round of progress, and whether the step is over. */
    bool test() {
        int is_over = 0;
        check(trihop_array_test(array_, &is_over));
        return is_over != 0;
    }

    /* Waits until the step is over. */
    void wait() { ended(trihop_array_wait(array_)); }

    /* As the destructor, with the failure thrown. */
    void close() {
        if (array_ == nullptr)
            return;
        const trihop_status_t status = trihop_array_close(array_);
        if (detail::is_open_after(status))
            check(status); /* it goes on */
        array_ = nullptr;
        ended(status);
    }

private:
    template <class F> struct Visiting {
        F &visit;
        std::exception_ptr failure;

        static void on_element(void *context, std::uint64_t key, void *element) noexcept {
            auto &self = *static_cast<Visiting *>(context);
            if (self.failure)
                return;
            try {
                self.visit(key, *static_cast<Element *>(element));
            } catch (...) {
                self.failure = std::current_exception();
            }
        }
    };

    /* What a function of the program has thrown, and what the call says. */
    void ended(trihop_status_t status) {
        calls_->rethrow();
        steps_.rethrow();
        check(status);
    }

    /* Nothing of the program's is called any more, and what would be stays where it is. */
    void leave_calls() {
        calls_->drop();
        (void)calls_.release();
        steps_.leave();
    }

    detail::Scope scope_;
    std::unique_ptr<detail::HandlerBase> calls_;
    detail::Steps steps_;
    trihop_array_t *array_ = nullptr;
};

/* How long a call on a channel may take: a time, never() or once(). */
class Timeout {
public:
    template <class Count, class Period>
    Timeout(std::chrono::duration<Count, Period> time) {
        const double ns = std::chrono::duration<double, std::nano>(time).count();
        if (ns >= 9e18) /* some 285 years */
            ns_ = (std::numeric_limits<std::int64_t>::max)();
        else if (ns >= 1)
            ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
        else
            ns_ = 1;
    }

    /* As long as it takes. */
    static Timeout never() noexcept { return Timeout(TRIHOP_NO_TIMEOUT); }

    /* It is tried once. */
    static Timeout once() noexcept { return Timeout(TRIHOP_ONCE); }

    std::int64_t ns() const noexcept { return ns_; }

private:
    explicit Timeout(std::int64_t ns) noexcept : ns_(ns) {}

    std::int64_t ns_;
};

/* When a send to a channel returns: see trihop_return_t. */
enum class Return : std::int32_t {
    Immediately = TRIHOP_IMMEDIATELY,
    WhenBuffered = TRIHOP_WHEN_BUFFERED,
    WhenDeposited = TRIHOP_WHEN_DEPOSITED,
    WhenReceived = TRIHOP_WHEN_RECEIVED
};

/* A message that was got from a channel, with its memory, or one that is to be sent: see Channel::buffer. */
class Received {
public:
    Received(Received &&other) noexcept : received_(std::exchange(other.received_, trihop_received_t{})) {}
    Received &operator=(Received &&) = delete;
    ~Received() { trihop_received_free(&received_); }

    const void *data() const noexcept { return received_.bytes; }
    void *data() noexcept { return received_.bytes; }
    std::size_t size() const noexcept { return received_.length; }
    std::uint32_t source() const noexcept { return received_.source; }
    std::uint32_t kind() const noexcept { return received_.kind; }

private:
    friend class Channel;
    friend class Asked;
    Received() noexcept : received_{} {}

    trihop_received_t received_;
};

namespace detail {
/* Whether it was done in time; all else that fails is thrown. */
inline bool in_time(trihop_status_t status) { return status != TRIHOP_ERR_TIMED_OUT && try_check(status); }
} // namespace detail

/* A call on a channel that was started: see trihop_asked_t. One that is not over is taken back with it. */
class Asked {
public:
    Asked(Asked &&other) noexcept : asked_(std::exchange(other.asked_, nullptr)) {}
    Asked &operator=(Asked &&) = delete;

    ~Asked() {
        if (asked_ != nullptr && trihop_asked_free(asked_) != TRIHOP_OK)
            std::fprintf(stderr, "trihop_asked_free: %s\n", trihop_last_error());
    }

    trihop_asked_t *get() const noexcept { return asked_; }

    /* Makes one round of progress; whether it is over, in time or not. */
    bool test() {
        int is_over = 0;
        const trihop_status_t status = trihop_asked_test(asked_, &is_over);
        if (is_over == 0)
            check(status);
        return is_over != 0;
    }

    /* Waits until it is over; whether that was in time. All else that it fails with is thrown. */
    bool wait() { return detail::in_time(trihop_asked_wait(asked_)); }

    /* Of a get: waits for its message; nothing where there was none in time. Once. */
    std::optional<Received> received() {
        if (!wait())
            return std::nullopt;
        Received received;
        check(trihop_asked_received(asked_, &received.received_));
        return received;
    }

    /* Of a poll: waits for what it says; nothing where it did not hold in time. */
    std::optional<std::uint64_t> value() {
        if (!wait())
            return std::nullopt;
        std::uint64_t value = 0;
        check(trihop_asked_value(asked_, &value));
        return value;
    }

    /* A file descriptor, which is the request's: see trihop_asked_event. */
    int event() {
        std::int32_t descriptor = -1;
        check(trihop_asked_event(asked_, &descriptor));
        return descriptor;
    }

private:
    friend class Channel;
    explicit Asked(trihop_asked_t *asked) noexcept : asked_(asked) {}

    trihop_asked_t *asked_;
};

/* A port of a channel, which is closed with it: see trihop_channel_t. What cannot be done in time gives false or nothing, with
 * nothing done; all else that fails is thrown. */
class Channel {
public:
    Channel(Channel &&other) noexcept : channel_(std::exchange(other.channel_, nullptr)) {}
    Channel &operator=(Channel &&) = delete;

    ~Channel() {
        if (channel_ != nullptr && trihop_channel_free(channel_) != TRIHOP_OK)
            std::fprintf(stderr, "trihop_channel_free: %s\n", trihop_last_error());
    }

    trihop_channel_t *get() const noexcept { return channel_; }

    /* What names it on all ranks. */
    std::string descriptor() const {
        char text[TRIHOP_CHANNEL_DESCRIPTOR_CHARS];
        std::size_t length = 0;
        check(trihop_channel_descriptor(channel_, text, sizeof text, &length));
        return std::string(text, length);
    }

    /* Of trihop_channel_kind_t. */
    std::int32_t kind() const {
        std::int32_t kind = 0;
        check(trihop_channel_kind(channel_, &kind));
        return kind;
    }

    /* The rank that has it. */
    std::uint32_t owner() const {
        std::uint32_t rank = 0;
        check(trihop_channel_owner(channel_, &rank));
        return rank;
    }

    /* What it may hold; another one is made like it by these. */
    trihop_channel_limits_t limits() const {
        trihop_channel_limits_t limits;
        check(trihop_channel_limits(channel_, &limits, sizeof limits));
        return limits;
    }

    /* See trihop_channel_send. */
    bool send(std::uint32_t kind, const void *bytes, std::size_t length, Return when = Return::WhenDeposited,
              Timeout timeout = Timeout::never()) const {
        const auto returns = static_cast<std::int32_t>(when);
        return in_time(trihop_channel_send(channel_, kind, bytes, length, returns, timeout.ns()));
    }

    /* Memory for a message that is to be sent by this port: see trihop_channel_buffer. */
    Received buffer(std::size_t length) const {
        Received message;
        check(trihop_channel_buffer(channel_, length, &message.received_));
        return message;
    }

    /* As send, of a message whose memory is given away: see trihop_channel_send_buffer. */
    bool send_buffer(std::uint32_t kind, Received &message, Return when = Return::WhenDeposited,
                     Timeout timeout = Timeout::never()) const {
        const auto returns = static_cast<std::int32_t>(when);
        return in_time(trihop_channel_send_buffer(channel_, kind, &message.received_, returns, timeout.ns()));
    }

    /* The first message, taken out: see trihop_channel_get. */
    std::optional<Received> receive(Timeout timeout = Timeout::never()) const {
        return message(timeout, trihop_channel_get);
    }

    /* As receive, into memory of the caller's, and how much of that is filled: see trihop_channel_get_into. A message of more
     * than `capacity` bytes stays in the channel: that is thrown, with TRIHOP_ERR_BUFFER_TOO_SMALL. */
    std::optional<trihop_filled_t> receive_into(void *bytes, std::size_t capacity, Timeout timeout = Timeout::never()) const {
        trihop_filled_t filled;
        if (!in_time(trihop_channel_get_into(channel_, timeout.ns(), bytes, capacity, &filled)))
            return std::nullopt;
        return filled;
    }

    /* A copy of the first message. */
    std::optional<Received> peek(Timeout timeout = Timeout::never()) const {
        return message(timeout, trihop_channel_peek);
    }

    /* Drops the first message. */
    bool pop(Timeout timeout = Timeout::never()) const { return in_time(trihop_channel_pop(channel_, timeout.ns())); }

    /* What is polled, of trihop_poll_t. */
    std::optional<std::uint64_t> poll(std::int32_t what, Timeout timeout = Timeout::never()) const {
        std::uint64_t value = 0;
        if (!in_time(trihop_channel_poll(channel_, what, timeout.ns(), &value)))
            return std::nullopt;
        return value;
    }

    /* Takes one from a semaphore. */
    [[nodiscard]] bool acquire(Timeout timeout = Timeout::never()) const { return poll(TRIHOP_POLL_ACQUIRE, timeout).has_value(); }

    /* Gives a semaphore one. */
    void release() const { check(trihop_channel_poll(channel_, TRIHOP_POLL_RELEASE, TRIHOP_NO_TIMEOUT, nullptr)); }

    /* Comes to a barrier, and waits for the others; how many came before. */
    [[nodiscard]] std::optional<std::uint64_t> arrive(Timeout timeout = Timeout::never()) const {
        return poll(TRIHOP_POLL_ARRIVE, timeout);
    }

    /* As receive, and does not wait: nothing where as many requests of the port wait as may. */
    std::optional<Asked> start_receive(Timeout timeout = Timeout::never()) const {
        return started([&](trihop_asked_t **asked) { return trihop_channel_start_get(channel_, timeout.ns(), asked); });
    }

    /* As poll, and does not wait. */
    std::optional<Asked> start_poll(std::int32_t what, Timeout timeout = Timeout::never()) const {
        return started([&](trihop_asked_t **asked) { return trihop_channel_start_poll(channel_, what, timeout.ns(), asked); });
    }

    /* As send, and does not wait: nothing, with nothing sent, where the port's window has no room. */
    std::optional<Asked> start_send(std::uint32_t kind, const void *bytes, std::size_t length,
                                    Return when = Return::WhenDeposited, Timeout timeout = Timeout::never()) const {
        const auto returns = static_cast<std::int32_t>(when);
        return started([&](trihop_asked_t **asked) {
            return trihop_channel_start_send(channel_, kind, bytes, length, returns, timeout.ns(), asked);
        });
    }

    /* As send_buffer, and does not wait: nothing, with `message` as it was, where the port's window has no room. */
    std::optional<Asked> start_send_buffer(std::uint32_t kind, Received &message, Return when = Return::WhenDeposited,
                                           Timeout timeout = Timeout::never()) const {
        const auto returns = static_cast<std::int32_t>(when);
        return started([&](trihop_asked_t **asked) {
            return trihop_channel_start_send_buffer(channel_, kind, &message.received_, returns, timeout.ns(), asked);
        });
    }

    /* A file descriptor, which is the port's: see trihop_channel_event. */
    int event() const {
        std::int32_t descriptor = -1;
        check(trihop_channel_event(channel_, &descriptor));
        return descriptor;
    }

    /* Sends that have failed after they had returned. */
    std::uint64_t failures() const {
        std::uint64_t count = 0;
        check(trihop_channel_failures(channel_, &count, nullptr));
        return count;
    }

    /* See trihop_channel_close. */
    void close() const { check(trihop_channel_close(channel_)); }

private:
    friend class Channels;
    friend class Guest;
    explicit Channel(trihop_channel_t *channel) noexcept : channel_(channel) {}

    template <class Call> static Channel made(Call call) {
        trihop_channel_t *channel = nullptr;
        check(call(&channel));
        return Channel(channel);
    }

    static bool in_time(trihop_status_t status) { return detail::in_time(status); }

    template <class Call> static std::optional<Asked> started(Call call) {
        trihop_asked_t *asked = nullptr;
        if (!try_check(call(&asked)))
            return std::nullopt;
        return Asked(asked);
    }

    template <class Call> std::optional<Received> message(Timeout timeout, Call call) const {
        Received received;
        if (!in_time(call(channel_, timeout.ns(), &received.received_)))
            return std::nullopt;
        return received;
    }

    trihop_channel_t *channel_;
};

/* The channels of a rank, with the messages in them, between two jobs: see Channels::keep. */
class Kept {
public:
    Kept(Kept &&other) noexcept : kept_(std::exchange(other.kept_, nullptr)) {}
    Kept &operator=(Kept &&other) noexcept {
        std::swap(kept_, other.kept_);
        return *this;
    }
    ~Kept() { trihop_kept_free(kept_); }

    const trihop_kept_t *get() const noexcept { return kept_; }

private:
    friend class Channels;
    explicit Kept(trihop_kept_t *kept) noexcept : kept_(kept) {}

    trihop_kept_t *kept_;
};

/* How channels are opened: see trihop_channels_options_t. */
struct ChannelsOptions {
    explicit ChannelsOptions(std::uint64_t bytes) noexcept : getmsg_bytes(bytes) {}

    /* What this rank hands out and has not arrived, at most; 0 for the bound of the environment. */
    std::uint64_t getmsg_bytes;
    /* Those of the job where it is null. */
    const Options *stream = nullptr;
    /* What this rank goes on with, where it is not null. */
    const Kept *kept = nullptr;
};

/* The channels of a job on this rank. Their ports end before them, and they before the job. */
class Channels {
public:
    /* Opens them, which is collective. */
    Channels(const Job &job, const char *name) { check(trihop_channels_open(job.get(), name, nullptr, &channels_)); }

    Channels(const Job &job, const char *name, const Options &options) {
        check(trihop_channels_open(job.get(), name, options.get(), &channels_));
    }

    /* Goes on with what this rank has kept: see trihop_channels_open_kept. */
    Channels(const Job &job, const char *name, const Kept &kept) {
        check(trihop_channels_open_kept(job.get(), name, nullptr, kept.get(), &channels_));
    }

    Channels(const Job &job, const char *name, const Kept &kept, const Options &options) {
        check(trihop_channels_open_kept(job.get(), name, options.get(), kept.get(), &channels_));
    }

    /* With all that an opening can have. */
    Channels(const Job &job, const char *name, const ChannelsOptions &options) {
        trihop_channels_options_t all;
        check(trihop_channels_options_init(&all, sizeof all));
        all.getmsg_bytes = options.getmsg_bytes;
        all.stream = options.stream == nullptr ? nullptr : options.stream->get();
        all.kept = options.kept == nullptr ? nullptr : options.kept->get();
        check(trihop_channels_open_with(job.get(), name, &all, &channels_));
    }

    Channels(Channels &&other) noexcept : scope_(other.scope_), channels_(std::exchange(other.channels_, nullptr)) {}
    Channels &operator=(Channels &&) = delete;

    /* Closes them, which is collective; not where an exception leaves their scope: that ends the job. */
    ~Channels() {
        if (channels_ != nullptr && !scope_.is_left_by_exception() && trihop_channels_close(channels_) != TRIHOP_OK)
            std::fprintf(stderr, "trihop_channels_close: %s\n", trihop_last_error());
    }

    trihop_channels_t *get() const noexcept { return channels_; }

    /* A queue of messages of this rank's. */
    Channel create(const trihop_channel_limits_t *limits = nullptr) const {
        return made([&](trihop_channel_t **channel) { return trihop_channel_create(channels_, limits, channel); });
    }

    /* A semaphore of this rank's: see trihop_channel_create_semaphore. */
    Channel semaphore(std::uint64_t value, std::uint64_t most, const trihop_channel_limits_t *limits = nullptr) const {
        return made([&](trihop_channel_t **channel) {
            return trihop_channel_create_semaphore(channels_, value, most, limits, channel);
        });
    }

    /* A barrier of this rank's: see trihop_channel_create_barrier. */
    Channel barrier(std::uint32_t parties, const trihop_channel_limits_t *limits = nullptr) const {
        return made([&](trihop_channel_t **channel) {
            return trihop_channel_create_barrier(channels_, parties, limits, channel);
        });
    }

    /* What their stream has done on this rank: see trihop_channels_stats. */
    trihop_stats_t stats() const {
        trihop_stats_t counters;
        check(trihop_channels_stats(channels_, &counters, sizeof counters));
        return counters;
    }

    /* Ends them and keeps them for another job: see trihop_channels_keep. */
    Kept keep() {
        trihop_kept_t *kept = nullptr;
        check(trihop_channels_keep(channels_, &kept));
        channels_ = nullptr;
        return Kept(kept);
    }

    /* That of the descriptor, of whichever rank. */
    Channel attach(const std::string &descriptor) const {
        return made([&](trihop_channel_t **channel) {
            return trihop_channel_attach(channels_, descriptor.c_str(), channel);
        });
    }

private:
    template <class Call> static Channel made(Call call) { return Channel::made(call); }

    detail::Scope scope_;
    trihop_channels_t *channels_ = nullptr;
};

/* Guests are served as long as it lives: see trihop_guests_serve. It ends before its channels. */
class Guests {
public:
    explicit Guests(const Channels &channels, const char *name = nullptr) {
        check(trihop_guests_serve(channels.get(), name, &guests_));
    }

    Guests(Guests &&other) noexcept : guests_(std::exchange(other.guests_, nullptr)) {}
    Guests &operator=(Guests &&other) noexcept {
        std::swap(guests_, other.guests_);
        return *this;
    }
    ~Guests() { trihop_guests_free(guests_); }

    trihop_guests_t *get() const noexcept { return guests_; }

private:
    trihop_guests_t *guests_ = nullptr;
};

/* See trihop_lifetime_t. */
enum class Lifetime : std::int32_t { Guest = TRIHOP_OF_GUEST, Server = TRIHOP_OF_SERVER };

/* A process that is no rank, and uses channels through one: see trihop_guest_t. */
class Guest {
public:
    /* Waits until somebody serves under this name. */
    explicit Guest(const char *name = nullptr, Timeout timeout = Timeout::never()) {
        check(trihop_guest_open(name, timeout.ns(), &guest_));
    }

    Guest(Guest &&other) noexcept : guest_(std::exchange(other.guest_, nullptr)) {}
    Guest &operator=(Guest &&other) noexcept {
        std::swap(guest_, other.guest_);
        return *this;
    }
    ~Guest() { trihop_guest_free(guest_); }

    trihop_guest_t *get() const noexcept { return guest_; }

    /* The rank that serves it. */
    std::uint32_t rank() const {
        std::uint32_t rank = 0;
        check(trihop_guest_server(guest_, &rank, nullptr));
        return rank;
    }

    /* Ranks of the job. */
    std::uint32_t size() const {
        std::uint32_t size = 0;
        check(trihop_guest_server(guest_, nullptr, &size));
        return size;
    }

    /* A queue of messages of the server's. */
    Channel create(Lifetime lifetime = Lifetime::Guest, const trihop_channel_limits_t *limits = nullptr) const {
        return Channel::made([&](trihop_channel_t **channel) {
            return trihop_guest_create(guest_, limits, static_cast<std::int32_t>(lifetime), channel);
        });
    }

    /* A semaphore of the server's. */
    Channel semaphore(std::uint64_t value, std::uint64_t most, Lifetime lifetime = Lifetime::Guest,
                      const trihop_channel_limits_t *limits = nullptr) const {
        return Channel::made([&](trihop_channel_t **channel) {
            const auto lasts = static_cast<std::int32_t>(lifetime);
            return trihop_guest_create_semaphore(guest_, value, most, limits, lasts, channel);
        });
    }

    /* A barrier of the server's. */
    Channel barrier(std::uint32_t parties, Lifetime lifetime = Lifetime::Guest,
                    const trihop_channel_limits_t *limits = nullptr) const {
        return Channel::made([&](trihop_channel_t **channel) {
            const auto lasts = static_cast<std::int32_t>(lifetime);
            return trihop_guest_create_barrier(guest_, parties, limits, lasts, channel);
        });
    }

    /* That of the descriptor, of whichever rank. */
    Channel attach(const std::string &descriptor) const {
        return Channel::made([&](trihop_channel_t **channel) {
            return trihop_guest_attach(guest_, descriptor.c_str(), channel);
        });
    }

private:
    trihop_guest_t *guest_ = nullptr;
};

} // namespace trihop

#endif /* TRIHOP_HPP */
