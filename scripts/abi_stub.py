"""Builds a shared library from the C header for abidw, because the cdylib has no suitable debug information.

    abi_stub.py HEADER OUTPUT.so

Every function has a body that traps. Every enum has a global of its type, since functions take enums as int32_t. It is
compiled as C++, where the enums have names.
"""

import os
import re
import subprocess
import sys


def stub(header):
    """The C++ source."""
    text = open(header, encoding="utf-8").read()
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    code = re.sub(r"^#.*(?:\\\n.*)*$", "", code, flags=re.M)
    functions = re.findall(r"^[\w ]+[ *]+sa_\w+\([^;{}]*?\);", code, flags=re.M)
    functions = [function for function in functions if not function.startswith("typedef")]
    enums = re.findall(r"^enum (sa_\w+) : int32_t", code, flags=re.M)
    assert len(functions) > 40 and len(enums) > 10, (len(functions), len(enums))
    lines = [f'#include "{os.path.abspath(header)}"', 'extern "C" {']
    lines += [function[:-1] + " { __builtin_trap(); }" for function in functions]
    lines += [f"{enum} abi_of_{enum};" for enum in enums]
    return "\n".join(lines + ["}", ""])


def main():
    header, output = sys.argv[1:]
    source = output + ".cpp"
    with open(source, "w", encoding="utf-8") as out:
        out.write(stub(header))
    command = ["g++", "-std=c++17", "-g", "-O0", "-w", "-fPIC", "-shared", "-fno-eliminate-unused-debug-types", source]
    subprocess.run(command + ["-o", output], check=True)


main()
