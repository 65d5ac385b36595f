/* The header stands alone. */
#include <ictus.h>

int main(void) { return ictus_abi_hash() == ICTUS_ABI_HASH ? 0 : 1; }
