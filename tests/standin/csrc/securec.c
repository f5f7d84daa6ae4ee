/* The three bounded string functions that the wheel takes from the vendor's C library: 0 or a length, else -1. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int strcpy_s(char *target, size_t room, const char *source)
{
    if (!target || !source || strlen(source) >= room)
        return -1;
    strcpy(target, source);
    return 0;
}

int vsnprintf_s(char *target, size_t room, size_t count, const char *format, va_list arguments)
{
    int length = vsnprintf(target, room, format, arguments);
    return length < 0 || (size_t)length >= room || (size_t)length > count ? -1 : length;
}

int snprintf_s(char *target, size_t room, size_t count, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf_s(target, room, count, format, arguments);
    va_end(arguments);
    return length;
}
