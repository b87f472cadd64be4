# The record layout for compiled modules: the numbers of `layout.py`, which a test compares with these.

cdef enum:
    # Offsets from the record's first byte.
    TOTAL_SIZE_AT = 0
    MAGIC_AT = 4
    BODY_CRC_AT = 8
    QUEUE_ID_AT = 12
    USER_FLAG_AT = 16
    QUEUE_OFFSET_AT = 20
    POSITION_AT = 28
    STORAGE_FLAGS_AT = 36
    BORN_TIMESTAMP_AT = 40
    BORN_HOST_AT = 48
    # Offsets from the first byte after the store host.
    RECONSUME_TIMES_AT = 0
    PREPARED_POSITION_AT = 4
    BODY_SIZE_AT = 12

cdef enum:
    # Sizes in bytes.
    HOST_V4 = 8
    HOST_V6 = 20
    STORE_TIMESTAMP_SIZE = 8
    TAIL_SIZE = 16
    PROPERTIES_LENGTH_SIZE = 2
    SMALLEST_RECORD = 91
    BLANK_RESERVE = 8
    MAX_TOPIC_V1 = 127
    MAX_TOPIC = 255
    MAX_PROPERTIES = 32767
    CRC_PROPERTY_SIZE = 20

cdef enum:
    MAGIC_V1 = 0xDAA320A7u
    MAGIC_V2 = 0xDAA320ABu
    MAGIC_BLANK = 0xCBD43194u
    FLAG_COMPRESSED = 1
    FLAG_TRANSACTION_MASK = 12
    FLAG_COMMITTED = 8
    FLAG_ROLLED_BACK = 12
    FLAG_BORN_HOST_V6 = 16
    FLAG_STORE_HOST_V6 = 32
    FLAG_INNER_BATCH = 128
