// Nothing before the header, and the header twice.
#include <safealign.hpp>
#include <safealign.hpp>

// Every template of it, so that the compiler sees them.
template class safealign::Result<safealign::File>;
template class safealign::Result<safealign::View>;
template class safealign::Result<safealign::Writer>;
template class safealign::Span<const float>;
template safealign::Result<safealign::Span<const float>> safealign::View::as<float>() const;
template safealign::Result<safealign::Span<float>> safealign::View::as_mutable<float>() const;

static_assert(!std::is_copy_constructible_v<safealign::File> && std::is_nothrow_move_constructible_v<safealign::File>);
static_assert(!std::is_copy_constructible_v<safealign::Plan> && std::is_nothrow_move_constructible_v<safealign::Plan>);
static_assert(!std::is_copy_constructible_v<safealign::Writer> &&
              std::is_nothrow_move_constructible_v<safealign::Writer>);
static_assert(std::is_nothrow_copy_constructible_v<safealign::View> && std::is_nothrow_move_assignable_v<safealign::View>);
static_assert(!std::is_convertible_v<safealign::Span<const int>, safealign::Span<int>>);
static_assert(std::is_convertible_v<safealign::Span<int>, safealign::Span<const int>>);
static_assert(!std::is_convertible_v<safealign::Span<const int>, safealign::Bytes>);
