/*
 * How ranks know the functions that they send each other, for trihop/async.hpp: by the types of lambdas, and of what they are
 * called with.
 */
#ifndef TRIHOP_FUNCTIONS_HPP
#define TRIHOP_FUNCTIONS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <trihop/archive.hpp>

namespace trihop::async {

class comm;
template <class T> class pointer;
template <class T> class distributed;

namespace detail {

/* A function that ranks send to each other. */
struct Function {
    using Run = void (*)(comm &, Reader &);

    Function(const char *named, Run runs) : name(named), run(runs), next(std::exchange(first(), this)) {}
    Function(const Function &) = delete;

    static Function *&first() {
        static Function *first = nullptr;
        return first;
    }

    static constexpr std::uint32_t unknown = 0xffffffff;

    const char *name;
    Run run;
    Function *next;
    std::uint32_t number = unknown;
};

/* Of a name, behind others. */
inline std::uint64_t hash_of(const char *name, std::uint64_t hash = 0xcbf29ce484222325) noexcept {
    for (; *name != 0; name++)
        hash = (hash ^ static_cast<unsigned char>(*name)) * 0x100000001b3;
    return (hash ^ 0xff) * 0x100000001b3;
}

/* All functions of the program, by number: sorted by the names of their types, which are the same wherever it is loaded. */
class Functions {
public:
    static const Functions &all() {
        static const Functions functions;
        return functions;
    }

    const Function *operator[](std::uint32_t number) const noexcept {
        return number < functions_.size() ? functions_[number] : nullptr;
    }

    std::size_t size() const noexcept { return functions_.size(); }

    /* Of all names. */
    std::uint64_t hash() const noexcept { return hash_; }

private:
    Functions() {
        for (Function *at = Function::first(); at != nullptr; at = at->next)
            functions_.push_back(at);
        /* Of equal names, which functions of several files may have that nobody else sees, the one linked first is first. */
        std::reverse(functions_.begin(), functions_.end());
        std::stable_sort(functions_.begin(), functions_.end(), [](const Function *a, const Function *b) {
            return std::string_view(a->name) < std::string_view(b->name);
        });
        for (std::size_t at = 0; at < functions_.size(); at++) {
            functions_[at]->number = static_cast<std::uint32_t>(at);
            hash_ = hash_of(functions_[at]->name, hash_);
        }
    }

    std::vector<Function *> functions_;
    std::uint64_t hash_ = hash_of("");
};

/* What an argument is while it travels. */
template <class T> struct stored {
    using type = std::decay_t<T>;
    static const T &of(const T &value) { return value; }
};
template <> struct stored<const char *> {
    using type = std::string;
    static std::string of(const char *value) { return value; }
};
template <> struct stored<char *> : stored<const char *> {};
template <std::size_t N> struct stored<char[N]> : stored<const char *> {};
template <std::size_t N> struct stored<const char[N]> : stored<const char *> {};
template <> struct stored<std::string_view> {
    using type = std::string;
    static std::string of(std::string_view value) { return std::string(value); }
};
template <class T> struct stored<distributed<T>> {
    using type = pointer<T>;
    static pointer<T> of(const distributed<T> &value) { return value.get(); }
};
template <class T> using stored_t = typename stored<std::remove_cv_t<T>>::type;

/* An object of an empty class: any byte is one. */
template <class F> class Empty {
public:
    F &get() noexcept { return *std::launder(reinterpret_cast<F *>(place_)); }

private:
    alignas(F) unsigned char place_[sizeof(F)] = {};
};

/* Calls `function` with the arguments, and with the comm before them where it takes that. */
template <class F, class... Args> void call_with(comm &world, F &function, Args &...args) {
    if constexpr (std::is_invocable_v<F &, comm &, Args &&...>)
        function(world, std::move(args)...);
    else if constexpr (std::is_invocable_v<F &, comm *, Args &&...>)
        function(&world, std::move(args)...);
    else if constexpr (std::is_invocable_v<F &, Args &&...>)
        function(std::move(args)...);
    else if constexpr (std::is_invocable_v<F &, comm &, Args &...>)
        function(world, args...);
    else if constexpr (std::is_invocable_v<F &, comm *, Args &...>)
        function(&world, args...);
    else if constexpr (std::is_invocable_v<F &, Args &...>)
        function(args...);
    else
        static_assert(never<F>, "the function cannot be called with these arguments, nor with the comm before them");
}

/* One that is sent with arguments of these types. */
template <class F, class... Args> struct Call {
    static_assert(!std::is_pointer_v<F>, "a function pointer is another one on each rank: send a lambda that calls it");
    static_assert(std::is_class_v<F> && std::is_empty_v<F> && std::is_trivially_copyable_v<F>,
                  "a lambda that is sent has no captures, and an object no members: give what it needs as arguments");
    static_assert((std::is_default_constructible_v<Args> && ...), "arguments have a default constructor");

    static void run(comm &world, Reader &reader) {
        std::tuple<Args...> args{};
        std::apply([&reader](Args &...each) { reader(each...); }, args);
        reader.finish();
        Empty<F> function;
        std::apply([&](Args &...each) { call_with(world, function.get(), each...); }, args);
    }

    static inline Function function{typeid(Call).name(), &run};
};

} // namespace detail

} // namespace trihop::async

#endif /* TRIHOP_FUNCTIONS_HPP */
