// Saves the same arrays through the fork's functions, to files and to a writer, and loads them by its own.
//
//     fork DIRECTORY

#include "fork.hpp"

#include "../../check.h"
#include "../arrays.hpp"

using namespace arrays;

int main(int, char** argv) {
    mx::set_default_device(mx::Device::cpu);
    samples::work_in(argv[1]);
    Arrays saved;
    for (const mx::Dtype dtype : dtypes) {
        saved.insert_or_assign("byte before " + format_name(dtype), counted({1}, mx::uint8));
        saved.insert_or_assign(format_name(dtype), mx::transpose(counted({5, 3}, dtype)));
    }
    const safealign::mlx::StringMap metadata = {{"format", "mlx"}};
    const auto check = [&](const std::string& file) {
        const auto [loaded, texts] = forked::load_safetensors(file);
        CHECK_EQ(loaded.size(), saved.size());
        CHECK(texts == metadata);
        for (const auto& [name, array] : loaded) {
            CHECK(same(array, saved.at(name)));
        }
        const auto mapped = std::count_if(loaded.begin(), loaded.end(), [&](const auto& one) {
            return one.second.status() == mx::array::Status::available && is_mapped(one.second, file);
        });
        std::printf("%s: %td of %zu arrays are mapped\n", file.c_str(), mapped, loaded.size());
    };
    forked::save_safetensors("path", saved, metadata);
    check("path.safetensors");
    forked::save_safetensors(std::make_shared<mx::io::FileWriter>("writer.safetensors"), saved, metadata);
    check("writer.safetensors");
    return check_report();
}
