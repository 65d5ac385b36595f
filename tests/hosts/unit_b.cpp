// The other unit.
#include <ictus.hpp>

std::size_t records_of_the_other_unit() {
    ictus::Plan plan(1);
    plan.decode(1, 1).decode(2, 1);
    std::size_t count = 0;
    for (const ictus_lane_decode_t &record : ictus::Span<ictus_lane_decode_t>(plan.build()->decodes)) count += record.max_new_tokens;
    return count;
}
