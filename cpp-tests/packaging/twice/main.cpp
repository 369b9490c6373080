#include <safealign.h>

#include <cstring>

int main(int argc, char** argv) { return argc == 2 && std::strcmp(argv[1], sa_version_string()) == 0 ? 0 : 1; }
