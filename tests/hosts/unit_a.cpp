// One of two units that include everything: nothing of the header may be defined twice.
#include <ictus.hpp>

std::size_t records_of_the_other_unit();

int main() {
    ictus::Plan plan(1);
    plan.decode(1, 1).retire(2);
    return plan.build()->decodes.count == 1 && records_of_the_other_unit() == 2 ? 0 : 1;
}
