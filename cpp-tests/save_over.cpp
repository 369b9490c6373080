// Saves a model over a file and prints the error, if any. faults.py makes its system calls fail.
//
//     save_over FILE one-call|in-pieces

#include <safealign.hpp>

#include <cstdio>
#include <string>
#include <vector>

int main(int argc, char** argv) {
    if (argc != 3) {
        return 2;
    }
    // Enough for several calls of writev.
    std::vector<std::vector<std::uint8_t>> data;
    std::vector<safealign::Tensor> tensors;
    std::vector<safealign::TensorSpec> specs;
    std::vector<std::string> names;
    for (std::size_t at = 0; at < 1500; ++at) {
        data.emplace_back(at == 0 ? std::size_t{20} << 20 : at % 13 + 1, static_cast<std::uint8_t>(at % 251));
        names.push_back("tensor." + std::to_string(at));
    }
    for (std::size_t at = 0; at < data.size(); ++at) {
        tensors.push_back({names[at], safealign::Dtype::U8, {data[at].size()}, safealign::bytes_of(data[at])});
        specs.push_back({names[at], safealign::Dtype::U8, {data[at].size()}, data[at].size()});
    }

    safealign::Result<safealign::WriteReport> written = safealign::Error{};
    if (std::string(argv[2]) == "one-call") {
        written = safealign::write_aligned(argv[1], tensors);
    } else if (auto writer = safealign::Writer::open(argv[1], specs)) {
        safealign::Result<void> put;
        for (std::size_t at = 0; at < tensors.size() && put; ++at) {
            put = writer->put(at, tensors[at].data);
        }
        written = put ? writer->finish() : safealign::Result<safealign::WriteReport>(put.error());
    } else {
        written = writer.error();
    }
    if (!written) {
        std::printf("%s %s\n", safealign::name(written.error().status).data(), written.error().message.c_str());
        return 1;
    }
}
