#include <parent.h>

#include <cstring>

int main(int argc, char** argv) {
    return argc == 2 && std::strcmp(argv[1], parent_version()) == 0 ? 0 : 1;
}
