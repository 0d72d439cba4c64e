/*
 * Values as bytes, for trihop/async.hpp: numbers, enums, strings, the containers, pairs and tuples of the standard library,
 * types of a program with a member `template <class Archive> void serialize(Archive &archive) { archive(a, b, c); }`, and types
 * that may be copied byte by byte.
 *
 * Bytes come from ranks that run the same program. Those that make no value, since they end too early, are left over, or say a
 * length that they do not have, are a trihop::async::BadBytes; no memory is taken for a length before its bytes are there.
 */
#ifndef TRIHOP_ARCHIVE_HPP
#define TRIHOP_ARCHIVE_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace trihop::async {

/* Bytes that make no value of the type that they should. */
class BadBytes : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

class Writer;
class Reader;

namespace detail {

template <class T, class Archive, class = void> struct has_serialize : std::false_type {};
template <class T, class Archive>
struct has_serialize<T, Archive, std::void_t<decltype(std::declval<T &>().serialize(std::declval<Archive &>()))>>
    : std::true_type {};

template <class T> struct is_tuple : std::false_type {};
template <class... T> struct is_tuple<std::tuple<T...>> : std::true_type {};
template <class A, class B> struct is_tuple<std::pair<A, B>> : std::true_type {};

template <class T> struct is_array : std::false_type {};
template <class T, std::size_t N> struct is_array<std::array<T, N>> : std::true_type {};

template <class T> struct is_optional : std::false_type {};
template <class T> struct is_optional<std::optional<T>> : std::true_type {};

/* Sequences, and what has keys; of the latter also whether a key may be there twice. */
template <class T> struct is_sequence : std::false_type {};
template <class T, class A> struct is_sequence<std::vector<T, A>> : std::true_type {};
template <class T, class A> struct is_sequence<std::deque<T, A>> : std::true_type {};

template <class T> struct is_keyed : std::false_type {};
template <class K, class C, class A> struct is_keyed<std::set<K, C, A>> : std::true_type {};
template <class K, class C, class A> struct is_keyed<std::multiset<K, C, A>> : std::true_type {};
template <class K, class H, class E, class A> struct is_keyed<std::unordered_set<K, H, E, A>> : std::true_type {};
template <class K, class H, class E, class A>
struct is_keyed<std::unordered_multiset<K, H, E, A>> : std::true_type {};
template <class K, class V, class C, class A> struct is_keyed<std::map<K, V, C, A>> : std::true_type {};
template <class K, class V, class C, class A> struct is_keyed<std::multimap<K, V, C, A>> : std::true_type {};
template <class K, class V, class H, class E, class A>
struct is_keyed<std::unordered_map<K, V, H, E, A>> : std::true_type {};
template <class K, class V, class H, class E, class A>
struct is_keyed<std::unordered_multimap<K, V, H, E, A>> : std::true_type {};

/* What an element of something with keys is, without const. */
template <class T, class = void> struct element { using type = typename T::value_type; };
template <class T> struct element<T, std::void_t<typename T::mapped_type>> {
    using type = std::pair<typename T::key_type, typename T::mapped_type>;
};

/* Numbers that lie one behind the other, and any bytes of which are some. */
template <class T> struct is_numbers : std::false_type {};
template <class T, class A>
struct is_numbers<std::vector<T, A>> : std::bool_constant<std::is_arithmetic_v<T> && !std::is_same_v<T, bool>> {};

template <class T> inline constexpr bool never = false;

/* Why a type is refused, in the compiler's words. */
template <class T> constexpr void check_type() {
    static_assert(!std::is_pointer_v<T> && !std::is_member_pointer_v<T> && !std::is_null_pointer_v<T>,
                  "a pointer means nothing on another rank: send what it points to, or a trihop::async::pointer");
    static_assert(!std::is_reference_v<T> && !std::is_same_v<T, std::string_view>,
                  "what is only looked at is not there on another rank: send a std::string or a copy");
}

} // namespace detail

/* Appends values to bytes. */
class Writer {
public:
    static constexpr bool is_writing = true;

    explicit Writer(std::vector<unsigned char> &bytes) : bytes_(bytes) {}

    template <class... T> Writer &operator()(const T &...values) {
        (write(values), ...);
        return *this;
    }

    template <class T> Writer &operator&(const T &value) { return (*this)(value); }

    void raw(const void *from, std::size_t length) {
        if (length == 0)
            return;
        const auto *bytes = static_cast<const unsigned char *>(from);
        bytes_.insert(bytes_.end(), bytes, bytes + length);
    }

    /* A count in as few bytes as it needs. */
    void count(std::uint64_t number) {
        for (; number >= 128; number >>= 7)
            bytes_.push_back(static_cast<unsigned char>(number | 128));
        bytes_.push_back(static_cast<unsigned char>(number));
    }

private:
    template <class T> void write(const T &value) {
        detail::check_type<T>();
        if constexpr (detail::has_serialize<T, Writer>::value) {
            const_cast<T &>(value).serialize(*this); /* one function for both ways, which here only reads */
        } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
            raw(&value, sizeof value);
        } else if constexpr (std::is_same_v<T, std::string>) {
            count(value.size());
            raw(value.data(), value.size());
        } else if constexpr (detail::is_tuple<T>::value) {
            std::apply([this](const auto &...parts) { (write(parts), ...); }, value);
        } else if constexpr (detail::is_array<T>::value) {
            for (const auto &part : value)
                write(part);
        } else if constexpr (detail::is_optional<T>::value) {
            write(value.has_value());
            if (value)
                write(*value);
        } else if constexpr (detail::is_sequence<T>::value || detail::is_keyed<T>::value) {
            write_elements(value);
        } else if constexpr (std::is_trivially_copyable_v<T>) {
            raw(&value, sizeof value);
        } else {
            static_assert(detail::never<T>, "a type with a member `template <class A> void serialize(A &archive)` is needed");
        }
    }

    template <class T> void write_elements(const T &values) {
        using Element = typename detail::element<T>::type;
        count(values.size());
        if constexpr (detail::is_numbers<T>::value) {
            raw(values.data(), values.size() * sizeof(Element));
        } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
            for (const bool value : values)
                write(value);
        } else {
            for (const auto &value : values) {
                const std::size_t before = bytes_.size();
                if constexpr (!std::is_same_v<Element, typename T::value_type>)
                    (*this)(value.first, value.second); /* of a map, whose keys are const */
                else
                    write(value);
                if (bytes_.size() == before)
                    bytes_.push_back(0); /* each element has a byte, so that no count is longer than its bytes */
            }
        }
    }

    std::vector<unsigned char> &bytes_;
};

/* Takes values out of bytes, from the first on. */
class Reader {
public:
    static constexpr bool is_writing = false;

    /* `context` is for types that need to know where they are read: see context(). */
    Reader(const void *bytes, std::size_t length, void *context = nullptr)
        : at_(static_cast<const unsigned char *>(bytes)), left_(length), context_(context) {}

    template <class... T> Reader &operator()(T &...values) {
        (read(values), ...);
        return *this;
    }

    template <class T> Reader &operator&(T &value) { return (*this)(value); }

    void raw(void *to, std::size_t length) {
        if (length > left_)
            throw BadBytes("a value needs " + std::to_string(length) + " bytes where " + std::to_string(left_) + " are left");
        if (length > 0)
            std::memcpy(to, at_, length);
        at_ += length;
        left_ -= length;
    }

    std::uint64_t count() {
        std::uint64_t number = 0;
        for (unsigned shift = 0;; shift += 7) {
            unsigned char byte;
            raw(&byte, 1);
            const std::uint64_t part = byte & 127;
            if (shift > 63 || (shift == 63 && part > 1))
                throw BadBytes("a count has more than 64 bits");
            number |= part << shift;
            if (byte < 128)
                return number;
        }
    }

    std::size_t left() const noexcept { return left_; }

    /* All bytes were values. */
    void finish() const {
        if (left_ > 0)
            throw BadBytes(std::to_string(left_) + " bytes are left behind the last value");
    }

    /* The trihop::async::comm that the bytes came by, as a pointer; null elsewhere. */
    void *context() const noexcept { return context_; }

private:
    template <class T> void read(T &value) {
        detail::check_type<T>();
        if constexpr (detail::has_serialize<T, Reader>::value) {
            value.serialize(*this);
        } else if constexpr (std::is_same_v<T, bool>) {
            unsigned char byte;
            raw(&byte, 1);
            if (byte > 1)
                throw BadBytes("a truth value is " + std::to_string(byte));
            value = byte == 1;
        } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
            raw(&value, sizeof value);
        } else if constexpr (std::is_same_v<T, std::string>) {
            const std::size_t length = checked(count(), 1);
            value.assign(reinterpret_cast<const char *>(at_), length);
            at_ += length;
            left_ -= length;
        } else if constexpr (detail::is_tuple<T>::value) {
            std::apply([this](auto &...parts) { (read(parts), ...); }, value);
        } else if constexpr (detail::is_array<T>::value) {
            for (auto &part : value)
                read(part);
        } else if constexpr (detail::is_optional<T>::value) {
            bool is_there;
            read(is_there);
            if (is_there)
                read(value.emplace());
            else
                value.reset();
        } else if constexpr (detail::is_sequence<T>::value || detail::is_keyed<T>::value) {
            read_elements(value);
        } else if constexpr (std::is_trivially_copyable_v<T>) {
            raw(&value, sizeof value);
        } else {
            static_assert(detail::never<T>, "a type with a member `template <class A> void serialize(A &archive)` is needed");
        }
    }

    template <class T> void read_elements(T &values) {
        using Element = typename detail::element<T>::type;
        if constexpr (detail::is_numbers<T>::value) {
            values.resize(checked(count(), sizeof(Element)));
            raw(values.data(), values.size() * sizeof(Element));
            return;
        }
        const std::size_t many = checked(count(), 1);
        values.clear();
        for (std::size_t done = 0; done < many; done++) {
            const std::size_t before = left_;
            Element value{};
            read(value);
            if (left_ == before)
                raw(&skipped_, 1);
            if constexpr (detail::is_keyed<T>::value)
                values.insert(std::move(value));
            else
                values.push_back(std::move(value));
        }
        if (values.size() != many)
            throw BadBytes("a key is there twice");
    }

    /* A number of elements of at least so many bytes each, which are there. */
    std::size_t checked(std::uint64_t many, std::size_t bytes) const {
        if (many > left_ / bytes)
            throw BadBytes("a length of " + std::to_string(many) + " where " + std::to_string(left_) + " bytes are left");
        return static_cast<std::size_t>(many);
    }

    const unsigned char *at_;
    std::size_t left_;
    void *context_;
    unsigned char skipped_ = 0;
};

/* The bytes of values, and a value of bytes. */
template <class... T> std::vector<unsigned char> to_bytes(const T &...values) {
    std::vector<unsigned char> bytes;
    Writer{bytes}(values...);
    return bytes;
}

template <class T> T from_bytes(const void *bytes, std::size_t length) {
    T value{};
    Reader reader(bytes, length);
    reader(value);
    reader.finish();
    return value;
}

} // namespace trihop::async

#endif /* TRIHOP_ARCHIVE_HPP */
