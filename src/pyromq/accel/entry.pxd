# A consume-queue entry: position, size of the record, tag code. `queue_cursor` defines it.

cdef enum:
    ENTRY = 20
    ENTRY_SIZE_AT = 8
    ENTRY_CODE_AT = 12
