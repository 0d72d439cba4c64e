/*
 * Blocks of a call as MPI's datatypes describe them: how long they are, where they lie, and their bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "door.h"

/* Where blocks with holes are gathered: as long as the longest so far, the limit at most. */
static char *gathered;
static int gathered_bytes;

/* How a type was made. MPI-4's types with large counts, of which only its newer calls tell, count as made by a struct. */
static int envelope_of(MPI_Datatype type, int *integers, int *addresses, int *types, int *combiner)
{
#if MPI_VERSION >= 4
    MPI_Count all[4] = {0};
    int error = PMPI_Type_get_envelope_c(type, &all[0], &all[1], &all[2], &all[3], combiner);

    *integers = (int)all[0];
    *addresses = (int)all[1];
    *types = (int)all[3];
    if (all[2] > 0)
        *combiner = MPI_COMBINER_STRUCT;
    return error;
#else
    return PMPI_Type_get_envelope(type, integers, addresses, types, combiner);
#endif
}

/* Whether elements of the type lie in memory as they travel. What the type's size and extent say is not enough: a struct of
 * two numbers, the second one first, has no hole and travels the other way round. So all types but those that MPI itself has,
 * and rows of these, are packed. */
static int is_plain(MPI_Datatype type)
{
    int integers, addresses, types, combiner, plain = 0;
    MPI_Datatype inner;
    int numbers[1];
    MPI_Aint address[1];

    if (envelope_of(type, &integers, &addresses, &types, &combiner) != MPI_SUCCESS)
        return 0;
    if (combiner == MPI_COMBINER_NAMED) {
        MPI_Aint lowest, extent;
        int size;

        return PMPI_Type_get_extent(type, &lowest, &extent) == MPI_SUCCESS &&
               PMPI_Type_size(type, &size) == MPI_SUCCESS && lowest == 0 && extent == size;
    }
    if ((combiner != MPI_COMBINER_CONTIGUOUS && combiner != MPI_COMBINER_DUP) || types != 1 || integers > 1 ||
        addresses > 0)
        return 0;
    if (PMPI_Type_get_contents(type, integers, addresses, types, numbers, address, &inner) != MPI_SUCCESS)
        return 0;
    plain = is_plain(inner);
    if (envelope_of(inner, &integers, &addresses, &types, &combiner) == MPI_SUCCESS &&
        combiner != MPI_COMBINER_NAMED)
        PMPI_Type_free(&inner);
    return plain;
}

int side_init(struct side *side, const void *buffer, int count, const int *counts, const int *displs, MPI_Datatype type)
{
    MPI_Aint lowest;
    MPI_Count item;
    int error = PMPI_Type_size_x(type, &item);

    if (error == MPI_SUCCESS)
        error = PMPI_Type_get_extent(type, &lowest, &side->extent);
    if (error != MPI_SUCCESS)
        return error;
    side->buffer = (char *)(uintptr_t)buffer;
    side->count = count;
    side->counts = counts;
    side->displs = displs;
    side->type = type;
    side->item = item;
    side->is_plain = is_plain(type);
    return MPI_SUCCESS;
}

int side_count(const struct side *side, int rank)
{
    return side->counts == NULL ? side->count : side->counts[rank];
}

int64_t side_bytes(const struct side *side, int rank)
{
    int64_t count = side_count(side, rank);

    return side->item != 0 && count > INT64_MAX / side->item ? INT64_MAX : count * side->item;
}

char *side_block(const struct side *side, int rank)
{
    /* By numbers: a buffer may be MPI_BOTTOM. */
    intptr_t elements = side->displs == NULL ? (intptr_t)rank * side->count : side->displs[rank];

    return (char *)((intptr_t)side->buffer + elements * side->extent);
}

const void *side_gather(const struct side *side, int rank, int *error)
{
    int bytes = (int)side_bytes(side, rank), at = 0;

    *error = MPI_SUCCESS;
    if (side->is_plain)
        return side_block(side, rank);
    if (bytes > gathered_bytes) {
        char *more = realloc(gathered, (size_t)bytes);

        if (more == NULL) {
            *error = door_breaks("no memory for a block of %d bytes that is to be packed", bytes);
            return NULL;
        }
        gathered = more;
        gathered_bytes = bytes;
    }
    *error = PMPI_Pack(side_block(side, rank), side_count(side, rank), side->type, gathered, bytes, &at, door.comm);
    if (*error == MPI_SUCCESS && at != bytes)
        *error = door_breaks("MPI has packed a block of %d bytes as %d bytes", bytes, at);
    return *error == MPI_SUCCESS ? gathered : NULL;
}

int side_scatter(const struct side *side, int rank, const void *bytes, int64_t length)
{
    int at = 0;

    if (!side->is_plain)
        return PMPI_Unpack(bytes, (int)length, &at, side_block(side, rank), side_count(side, rank), side->type,
                           door.comm);
    memcpy(side_block(side, rank), bytes, (size_t)length);
    return MPI_SUCCESS;
}

int packing_is_plain(void)
{
    /* Every second one of these, and an end that is not a whole number of any unit. */
    static const unsigned char numbers[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
    unsigned char packed[sizeof numbers];
    MPI_Datatype seconds;
    int at = 0, is_plain = 0;

    if (PMPI_Type_vector(7, 1, 2, MPI_BYTE, &seconds) != MPI_SUCCESS)
        return 0;
    if (PMPI_Type_commit(&seconds) == MPI_SUCCESS &&
        PMPI_Pack(numbers, 1, seconds, packed, (int)sizeof packed, &at, MPI_COMM_WORLD) == MPI_SUCCESS && at == 7) {
        is_plain = 1;
        for (int i = 0; i < 7; i++)
            is_plain &= packed[i] == numbers[2 * i];
    }
    PMPI_Type_free(&seconds);
    return is_plain;
}

void blocks_free(void)
{
    free(gathered);
    gathered = NULL;
    gathered_bytes = 0;
}
