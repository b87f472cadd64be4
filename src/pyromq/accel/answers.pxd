# Writing the texts and numbers of an answer.

from libc.string cimport memcpy


cdef inline unsigned char* put_bytes(unsigned char* at, bytes text) noexcept:
    memcpy(at, <const unsigned char*>text, len(text))
    return at + len(text)


cdef inline unsigned char* put_number(unsigned char* at, long long value) noexcept:
    cdef unsigned char digits[24]
    cdef int count = 0
    cdef unsigned long long rest
    if value < 0:
        at[0] = 45
        at += 1
        rest = <unsigned long long>(-(value + 1)) + 1
    else:
        rest = value
    while True:
        digits[count] = 48 + rest % 10
        rest //= 10
        count += 1
        if rest == 0:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at
