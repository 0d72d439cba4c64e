/*
 * Streams of values of any length, for C++17: texts, vectors, maps, and types of a program that say what they are made of.
 *
 *   #include <trihop/coded.hpp>
 *
 *   using Word = std::pair<std::string, std::uint64_t>;
 *   trihop::Coded<Word> words(job, "words", [&](Word word) { counts[word.first] += word.second; });
 *   words.push(owner_of("ship"), {"ship", 1});
 *   words.fence();
 *
 * A codec writes values and reads them. The usual one, trihop::Archived, is that of trihop/archive.hpp. Another is a type with
 *
 *   template <class T> static void write(const T &value, std::vector<unsigned char> &bytes);  // appends
 *   template <class T> static T read(const void *bytes, std::size_t length);                  // or throws
 *
 * Values of one length that are plain data travel faster on a trihop::Stream. Everything here is inline.
 */
#ifndef TRIHOP_CODED_HPP
#define TRIHOP_CODED_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <trihop.hpp>
#include <trihop/archive.hpp>

namespace trihop {

/* The codec of trihop/archive.hpp: compact, between machines of one byte order. */
struct Archived {
    template <class T> static void write(const T &value, std::vector<unsigned char> &bytes) { async::Writer{bytes}(value); }
    template <class T> static T read(const void *bytes, std::size_t length) { return async::from_bytes<T>(bytes, length); }
};

template <class T, class Codec = Archived> class Coded;

/* A value, while its handler runs: where it came from, and what that may send. */
template <class T, class Codec = Archived> class Arrival {
public:
    std::uint32_t source() const noexcept { return record_.source(); }
    std::uint32_t rank() const noexcept { return record_.rank(); }
    std::uint32_t ranks() const noexcept { return record_.ranks(); }

    /* Sends a value on the same stream. It never waits. */
    void push(std::uint32_t target, const T &value) const {
        std::vector<unsigned char> bytes;
        Codec::write(value, bytes);
        record_.send(target, 0, bytes.data(), bytes.size());
    }

    /* So many contributors of the stream's step are done. */
    void done(std::uint64_t contributors = 1) const { record_.done(contributors); }

private:
    friend class Coded<T, Codec>;
    explicit Arrival(const Record &record) : record_(record) {}

    const Record &record_;
};

/* A stream of values, each of any length. */
template <class T, class Codec> class Coded : public Shuffle {
public:
    /* Opens it, which is collective. The handler takes `T`, and may take `const Arrival<T, Codec> &` behind it. Bytes that the
     * codec refuses are as what the handler throws. */
    template <class F>
    Coded(const Job &job, const char *name, F handler, const Options *options = nullptr)
        : Shuffle(
              job, name,
              [handler = std::move(handler)](const Record &record) mutable {
                  T value = Codec::template read<T>(record.data(), record.size());
                  if constexpr (std::is_invocable_v<F &, T, const Arrival<T, Codec> &>)
                      handler(std::move(value), Arrival<T, Codec>(record));
                  else
                      handler(std::move(value));
              },
              options) {}

    /* Sends a value; waits while there is no room, but not in a handler. Throws what the codec throws, with nothing sent. */
    void push(std::uint32_t target, const T &value) {
        with_bytes(value, [&](const Bytes &bytes) { send(target, 0, bytes.data(), bytes.size()); });
    }

    /* Sends a value if there is room now. */
    bool try_push(std::uint32_t target, const T &value) {
        bool is_sent = false;
        with_bytes(value, [&](const Bytes &bytes) { is_sent = try_send(target, 0, bytes.data(), bytes.size()); });
        return is_sent;
    }

    /* Sends a value to all ranks, or to all others. */
    void broadcast(const T &value, trihop_broadcast_t to = TRIHOP_TO_EVERYONE) {
        with_bytes(value, [&](const Bytes &bytes) { Shuffle::broadcast(0, bytes.data(), bytes.size(), to); });
    }

private:
    using Bytes = std::vector<unsigned char>;

    template <class Send> static void with_bytes(const T &value, Send send) {
        constexpr std::size_t most_kept = std::size_t{1} << 20;
        static thread_local Bytes kept;
        Bytes bytes = std::exchange(kept, Bytes()); /* a handler that is called meanwhile has memory of its own */
        bytes.clear();
        Codec::write(value, bytes);
        send(bytes);
        if (bytes.capacity() <= most_kept)
            kept = std::move(bytes);
    }
};

} // namespace trihop

#endif /* TRIHOP_CODED_HPP */
